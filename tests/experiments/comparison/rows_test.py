"""The rows of a comparison: what each runs, and what is wrong with it."""

import glob

import pytest

from tests.testing.made_up_runs import write_run
from tff_algos.experiments import declarations
from tff_algos.experiments.comparison.errors import ComparisonError
from tff_algos.experiments.comparison.rows import default_folder, make_rows
from tff_algos.experiments.errors import RunError

WHAT = declarations.load()
TASK = "--task=mnist"


@pytest.fixture
def presets(tmp_path):
    folder = tmp_path / "presets"
    folder.mkdir()
    (folder / "fedavg.flags").write_text("# A paper.\n--algo=fedavg\n--task=emnist\n")
    (folder / "uga.flags").write_text(f"--algo=uga\n--flagfile={folder}/common.flags\n")
    (folder / "notes.txt").write_text("")
    (folder / "common.flags").write_text("--task=mnist\n")
    (folder / "common_0.1-mnist.flags").write_text("--algo=uga\n")
    (tmp_path / "common_all.flags").write_text("--task=mnist\n")
    return folder


def test_rows_are_algorithms_with_common_flags():
    rows = make_rows(["fedavg", "scaffold"], [TASK, "--total_rounds=3"], [], WHAT)
    assert [row.label for row in rows] == ["fedavg", "scaffold"]
    assert sorted(rows[1].arguments) == [
        "--algo=scaffold",
        "--task=mnist",
        "--total_rounds=3",
    ]


def test_what_a_row_lacks_is_left_out_of_it():
    rows = make_rows(["fedavg", "fedprox"], [TASK], ["proximal_strength=0.1,1"], WHAT)
    assert [row.label for row in rows] == [
        "fedavg",
        "fedprox proximal_strength=0.1",
        "fedprox proximal_strength=1",
    ]
    assert rows[0].left_out == ("proximal_strength",)
    assert rows[1].left_out == ()
    assert "--proximal_strength=0.1" in rows[1].arguments


def test_pooled_training_has_no_flags_of_clients_that_take_part():
    asked = ["--attack=scale:10", "--malicious_clients=0.2", "--client_dropout=0.1"]
    rows = make_rows(["fedavg", "centralized"], [TASK, *asked], [], WHAT)
    assert rows[0].left_out == () and set(asked) <= set(rows[0].arguments)
    assert rows[1].left_out == ("attack", "client_dropout", "malicious_clients")
    assert set(rows[1].arguments) == {"--algo=centralized", TASK}
    told = "--attack='scale:10': no row has it; it belongs to algorithms that train on"
    with pytest.raises(ComparisonError, match=told):
        make_rows(["centralized"], [TASK, asked[0]], [], WHAT)


def test_the_grid_wins_over_common_flags_and_these_over_flag_files(presets):
    rows = make_rows(
        [f"{presets}/u*.flags", f"{presets}/fedavg.flags"],
        ["--client_learning_rate=9", "--task=cifar10"],
        ["client_learning_rate=0.1,0.2"],
        WHAT,
    )
    assert [row.label for row in rows] == [
        "uga client_learning_rate=0.1",
        "uga client_learning_rate=0.2",
        "fedavg client_learning_rate=0.1",
        "fedavg client_learning_rate=0.2",
    ]
    assert sorted(rows[2].arguments) == [
        "--algo=fedavg",
        "--client_learning_rate=0.1",
        "--task=cifar10",
    ]


def test_a_pattern_gives_its_files_in_order_without_what_they_share(presets):
    rows = make_rows([f"{presets}/*.flags"], [], [], WHAT)
    assert [row.label for row in rows] == ["fedavg", "uga"]
    assert "--task=mnist" in rows[1].arguments


def test_a_row_that_is_named_twice_is_one(presets):
    rows = make_rows([f"{presets}/uga.flags", "uga"], [TASK], [], WHAT)
    assert [row.label for row in rows] == ["uga"]


def test_the_name_of_a_file_is_no_pattern(tmp_path):
    folder = tmp_path / "exp[1]"
    folder.mkdir()
    (folder / "mine.flags").write_text("--algo=fedavg\n")
    (row,) = make_rows([f"{folder}/mine.flags"], [TASK], [], WHAT)
    assert row.label == "mine"


def test_an_algorithm_is_meant_though_a_run_has_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_run(tmp_path / "fedavg")
    (row,) = make_rows(["fedavg"], [TASK], [], WHAT)
    assert "--algo=fedavg" in row.arguments and not row.folders
    (row,) = make_rows(["./fedavg"], [], [], WHAT)
    assert [each.resolve() for each in row.folders] == [tmp_path / "fedavg"]


def test_values_with_commas_are_quoted_in_a_grid():
    rows = make_rows(["fedavg"], [TASK], ['malicious_clients="a,b",c'], WHAT)
    assert [row.label for row in rows] == [
        "fedavg malicious_clients=a,b",
        "fedavg malicious_clients=c",
    ]


def test_a_grid_may_be_one_of_flag_files(presets):
    names = [f"{presets}/{name}.flags" for name in ("fedavg", "uga")]
    (presets / "base.flags").write_text("")
    grid = [f"flagfile={','.join(names)}"]
    rows = make_rows([f"{presets}/base.flags"], [], grid, WHAT)
    algorithms = [each for row in rows for each in row.arguments if "algo" in each]
    assert algorithms == ["--algo=fedavg", "--algo=uga"]


def test_flag_files_say_what_was_published(presets):
    rows = make_rows([f"{presets}/*.flags", "scaffold"], [TASK], [], WHAT)
    assert {row.published for row in rows} == {"A paper.", None}
    assert rows[-1].published is None


def test_a_flag_file_may_be_empty(presets):
    (presets / "fedavg.flags").write_text("")
    (row,) = make_rows([f"{presets}/fedavg.flags"], ["--algo=uga", TASK], [], WHAT)
    assert row.published is None


def test_existing_runs_may_be_beside_rows_to_run(tmp_path):
    write_run(tmp_path / "run")
    rows = make_rows(["fedavg", str(tmp_path / "run")], [TASK], [], WHAT)
    assert [row.label for row in rows] == ["fedavg", "fedavg (run)"]


def test_a_pattern_that_the_shell_expanded_has_the_same_rows(presets):
    pattern = f"{presets}/*.flags"
    expanded = sorted(glob.glob(pattern))
    assert f"{presets}/common.flags" in expanded
    expected = make_rows([pattern], [TASK], [], WHAT)
    assert len(expected) == 2
    assert make_rows(expanded, [TASK], [], WHAT) == expected


def test_what_rows_share_is_no_row_beside_an_algorithm(presets, monkeypatch):
    monkeypatch.chdir(presets)
    with pytest.raises(ComparisonError, match="^common.flags has what rows share"):
        make_rows(["fedavg", "common.flags"], [TASK], [], WHAT)


@pytest.mark.parametrize(
    ("contenders", "common", "grid", "message"),
    [
        (["fedavgg"], [TASK], [], "--algo=fedavgg is unknown, did you mean fedavg"),
        (["{}/x*"], [], [], "/x. is not a flag file; .* has fedavg.flags, uga.flags"),
        (["{}/common.flags"], [], [], "/common.flags has what rows share; .* has fed"),
        (
            ["{}/../common_all.flags"],
            [],
            [],
            "has what rows share; rows are in the fold",
        ),
        (["{}/z/*"], [], [], "/z/. is not a flag file; there is no folder .*/z.$"),
        (["{}/run"], [TASK], [], "there is no .*/run; expected an algorithm, a flag"),
        (["nothing"], [TASK], [], r"--algo=nothing is unknown\. One of: centralized, "),
        (["{}"], [], [], "is neither an algorithm, a flag file nor the folder of a ru"),
        (["fedavg"], [], [], "--task is missing for fedavg"),
        (["fedavg"], ["--task=mnits"], [], "--task=mnits is unknown, .* mnist"),
        (
            ["fedavg"],
            [TASK, "--total_round=3"],
            [],
            r"--total_round is unknown, did you mean --total_rounds\?",
        ),
        (["fedavg"], [TASK, "--total_rounds=many"], [], "total_rounds='many' is not"),
        (["fedavg"], [TASK, "--total_rounds=-1"], [], "fedavg: --total_rounds=-1"),
        (["fedavg"], [TASK, "--memory_size=3"], [], "--memory_size=3: no row has it; "),
        (["fedavg"], [TASK], ["memory_size=3"], "--memory_size=3: no row has it; "),
        (["fedavg"], [TASK], ["total_rounds"], "--grid=total_rounds: expected name="),
        (["fedavg"], [TASK], ["total_rounds="], "--grid=total_rounds=: expected name="),
        (["{0}/uga.flags", "{0}/other/uga.flags"], [], [], "two rows are called 'uga'"),
        (
            ["fedavg"],
            [TASK, "--seed=3"],
            [],
            r"^--seed=3 cannot .* compare, which runs seeds 0 to N - 1 of --seeds=N\.$",
        ),
        (["fedavg"], [TASK], ["seed=1,2"], "^--seed=1 cannot be used with compare, "),
        (
            ["{}/other/seed.flags"],
            [],
            [],
            "^seed: --seed=2 cannot be used with compare,",
        ),
        (["fedavg"], [TASK, "--noresume"], [], "^--noresume cannot .* always resumes"),
        (
            ["fedavg"],
            [TASK, "--list"],
            [],
            r"^--list .* compare: use it without compare",
        ),
        (
            ["fedavg"],
            [TASK],
            ["output_dir=a,b"],
            r"--grid: each run gets a folder inside the command's --output_dir\.$",
        ),
        (
            ["fedavg"],
            [TASK],
            ["client_lr=1,2"],
            r"^--grid=client_lr=1,2: .* --client_lr; .* mean --client_learning_rate\?$",
        ),
        (
            ["fedavg"],
            [TASK],
            ["lr=1"],
            "--lr; did you mean --client_learning_rate or --server_learning_rate or ",
        ),
        (["fedavg"], [TASK], ["total_round=1"], r"did you mean --total_rounds\?$"),
        (["fedavg"], [TASK], ["sed=1"], r"there is no --sed; did you mean --seed\?$"),
        (["fedavg"], [TASK], ["seed=1", "seed=2"], "^--grid=seed=... is there twice; "),
        (
            ["fedavg"],
            [TASK, "--algo=uga"],
            [],
            "^--algo=uga cannot be used with compare for fedavg: each algorithm that is",
        ),
        (["fedavg"], [TASK], ["algo=uga,fedprox"], "^--algo=uga cannot be used with"),
        (
            ["{}/other/uga.flags"],
            ["--algo=fedavg"],
            [],
            "^--algo=fedavg cannot be used with compare for uga: ",
        ),
        (
            ["{}/other/typo.flags"],
            [],
            [],
            "^in .*/other/typo.flags: --total_round is unknown, did you mean --total_ro",
        ),
        (
            ["{}/other/word.flags"],
            [],
            [],
            "^in .*/word.flags: --total_rounds='x' is not valid: expected an integer",
        ),
        (["{}/other/bytes.flags"], [], [], "^--flagfile: .*/bytes.flags, .* not text"),
        (["fedavg"], [TASK], ["xyz=1"], r"^--grid=xyz=1: there is no --xyz\.$"),
        (["fedavg"], [TASK, "--flagfile={}/none"], [], "Unable to open flagfile.*none"),
        (["fedavg"], ["--task=csv:/none.csv"], [], "there is no such file"),
    ],
)
def test_rows_that_cannot_be_made_are_errors(
    presets, contenders, common, grid, message
):
    (presets / "other").mkdir()
    (presets / "other" / "uga.flags").write_text("--algo=uga\n--task=emnist\n")
    (presets / "other" / "typo.flags").write_text("--algo=uga\n--total_round=2\n")
    (presets / "other" / "word.flags").write_text("--algo=uga\n--total_rounds=x\n")
    (presets / "other" / "bytes.flags").write_bytes(b"--algo=\xff\n")
    seed = "--algo=uga\n--task=emnist\n--seed=2\n"
    (presets / "other" / "seed.flags").write_text(seed)
    contenders, common = (
        [text.format(presets) for text in texts] for texts in (contenders, common)
    )
    with pytest.raises(RunError, match=message) as error:
        make_rows(contenders, common, grid, WHAT)
    assert "\n" not in str(error.value)


def test_the_same_run_is_not_two_seeds(tmp_path):
    one, copy = tmp_path / "one", tmp_path / "copy"
    write_run(one, seed=4)
    write_run(copy, seed=4)
    with pytest.raises(ComparisonError, match="one/ is there twice"):
        make_rows([str(one), f"{one}/"], [], [], WHAT)
    with pytest.raises(ComparisonError, match="copy and .*one are runs of the same"):
        make_rows([str(one), str(copy)], [], [], WHAT)


def test_flags_for_runs_that_have_ended_are_refused(tmp_path):
    write_run(tmp_path / "run")
    with pytest.raises(ComparisonError, match="--total_rounds cannot be set: all rows"):
        make_rows([str(tmp_path / "run")], ["--total_rounds=5"], [], WHAT)


def test_a_folder_is_named_by_what_rows_share(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for run in ("one", "two", "three"):
        write_run(tmp_path / "runs" / run)

    def name(contenders, *common):
        folder = default_folder(contenders, common)
        assert folder.parent.name == "runs"
        return folder.name

    assert name(["fedavg"], "--task=mnist") == "comparison-mnist"
    assert name(["fedavg", "uga"], "--task=mnist") == name(["uga"], "--task=mnist")
    assert name(["runs/one", "runs/two"]) == name(["runs/two", "runs/one"])
    assert name(["runs/one", "runs/two"]) != name(["runs/one", "runs/three"])
    # Their tasks are in a grid.
    assert name(["fedavg"]) == name(["fedavg", "uga"]) == "comparison"
    presets = ["presets/gradma/mnist/a.flags", "presets/gradma/mnist/b.flags"]
    assert name(presets) == name(["presets/gradma/mnist/*.flags"])
    assert name(presets) == name(["presets/gradma/mnist/*"])
    assert name(presets) == "comparison-gradma-mnist"
    assert name(["fedavg"], "--task=csv:data/my file") == "comparison-csv_data_my_file"


def test_other_flags_have_a_folder_of_their_own():
    flags = [["--total_rounds=3"], ["--total_rounds=30"], ["--total_rounds=3", "--x=1"]]
    names = {default_folder(["fedavg"], each).name for each in flags}
    assert len(names) == 3
    assert all(name.startswith("comparison-") for name in names)
    assert default_folder(["fedavg"], flags[2]) == default_folder(
        ["fedavg"], flags[2][::-1]
    )


def test_own_defaults_that_other_rows_lack_are_told():
    def own(*arguments, rows=("fedavg", "gradma")):
        made = make_rows(rows, ["--task=mnist", *arguments], [], WHAT)
        return {row.label: row.own_defaults for row in made}

    expected = (
        "--client_batch_size=64",
        "--client_learning_rate=0.1",
        "--client_steps_per_round=5",
        "--model=2nn",
        "--step_batching=per_pass",
    )
    assert own() == {"fedavg": (), "gradma": expected}
    # Given to all rows, or the same in all of them.
    given = own("--model=2nn", "--client_batch_size=64")
    assert given["gradma"] == (*expected[1:3], expected[4])
    assert own(rows=["gradma", "gradma_w"]) == {"gradma": (), "gradma_w": ()}

"""`--task=csv:FILE`, `npz:FILE` and `folder:DIR`, from flags to tasks."""

import os
import pathlib
import re

import numpy as np
import pytest
import tensorflow as tf

import tasks
from tasks import own_task
from tasks.task import DataOptions, TaskError
from tff_algos.hyperparameters import HyperparameterError


@pytest.fixture
def folder(tmp_path):
    lines = ["dose,sex,site,ill"]
    lines += [f"{n},{'mf'[n % 2]},s{n % 3},{n % 2}" for n in range(30)]
    (tmp_path / "people.csv").write_text("\n".join(lines))
    images = np.arange(24 * 16, dtype=np.uint8).reshape(24, 4, 4)
    np.savez(
        tmp_path / "arrays.npz",
        x=images,
        y=np.arange(24) % 3,
        who=np.arange(24) % 4,
        odd=np.array(["a", None] * 12, object),
    )
    np.savez(tmp_path / "other.npz", z=images)
    for number in range(24):
        path = tmp_path / f"pictures/{number % 2}/{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(images[number][..., None]).numpy())
    return tmp_path


def _load(name, data="auto", **options):
    entry = tasks.get(name)
    return tasks.load_task(name, entry.options(**options), DataOptions(data=data))


def test_a_csv_file_becomes_a_task_titled_by_its_name(folder):
    task = _load(
        f"csv:{folder}/people.csv",
        label="ill",
        client_column="site",
        features="dose,sex",
        categories="sex",
    )
    assert task.dataset_name == "people"
    assert task.train_client_ids == ("s0", "s1", "s2")
    assert task.examples("s0", "train")[0].shape == (8, 3)
    assert task.encoding["features"] == ["dose", "sex=f", "sex=m"]


def test_a_column_whose_name_has_a_comma_is_written_as_in_the_file(tmp_path):
    rows = "".join(f"{n},{n % 3},{n % 2}\n" for n in range(20))
    (tmp_path / "q.csv").write_text(f'"income, net",age,label\n{rows}')
    task = _load(
        f"csv:{tmp_path}/q.csv", features='age, "income, net"', partition="iid:2"
    )
    assert task.encoding["features"] == ["age", "income, net"]
    with pytest.raises(
        ValueError, match='features=.income. .*: "income, net", age, label'
    ):
        _load(f"csv:{tmp_path}/q.csv", features="income, net")


def test_an_npz_file_becomes_a_task(folder):
    task = _load(f"npz:{folder}/arrays.npz", client_column="who", model="cnn")
    assert task.train_client_ids == ("0", "1", "2", "3")
    x, y = task.examples("0", "train")
    assert x.shape == (5, 4, 4, 1) and set(y) <= {0, 1, 2}


def test_a_folder_becomes_a_task(folder):
    task = _load(f"folder:{folder}/pictures", partition="iid:3", standardize=False)
    assert task.dataset_name == "pictures" and len(task.train_client_ids) == 3
    x, _ = task.examples("client_000", "train")
    assert x.shape[1:] == (4, 4, 1) and 0 <= x.min() and x.max() <= 1


def test_the_encoding_of_images_of_16_bits_is_of_the_files_values(tmp_path):
    pixels = np.random.default_rng(0).integers(0, 2**16, (12, 4, 4, 1), np.uint16)
    for number, image in enumerate(pixels):
        path = tmp_path / "scans" / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(tf.io.encode_png(image).numpy())
    for standardize in (True, False):
        task = _load(
            f"folder:{tmp_path}/scans",
            partition="iid:1",
            standardize=standardize,
            client_test_fraction=0.5,
            eval_client_fraction=0.0,
        )
        (client,) = task.train_client_ids
        parts = [task.examples(client, split)[0] for split in ("train", "test")]
        found = np.concatenate(parts)
        mean, deviation = task.encoding["mean"], task.encoding["deviation"]
        expected = (pixels - np.asarray(mean)) / np.asarray(deviation)
        np.testing.assert_allclose(
            np.sort(found, axis=None), np.sort(expected, axis=None), atol=1e-5
        )


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("csv:{}/none.csv", {}, "none.csv: there is no such file"),
        ("folder:{}/people.csv", {}, "people.csv: it is a file, expected a folder"),
        ("csv:{}/pictures", {}, "pictures: it is a folder, expected a file"),
        ("npz:{}/people.csv", {}, r"^\S*people.csv is not an npz archive, which"),
        ("csv:{}/arrays.npz", {}, "cannot be read as CSV: it is compressed"),
    ],
)
def test_what_does_not_fit_is_named(name, options, message, folder):
    with pytest.raises(TaskError, match=message):
        _load(name.format(folder), **options)


@pytest.mark.parametrize(
    "classes", [("0.1", "0.5"), ("1", "1.0"), ("+1", "2"), ("-0", "0")]
)
def test_folders_of_decimals_are_not_classes(classes, tmp_path):
    for name in classes:
        (tmp_path / name).mkdir()
        image = tf.io.encode_png(np.zeros([2, 2, 1], np.uint8)).numpy()
        (tmp_path / name / "a.png").write_bytes(image)
    odd = next(name for name in sorted(classes) if not name.isdigit())
    with pytest.raises(TaskError, match=f"class is called {re.escape(odd)}, expected"):
        _load(f"folder:{tmp_path}", partition="iid:1")


def test_names_that_are_not_text_are_refused(tmp_path):
    path = tmp_path / os.fsdecode(b"m\xfcll.csv")
    path.write_text("label,a\n0,1\n1,2\n")
    with pytest.raises(TaskError, match="csv: its name is not in UTF-8: rename it"):
        _load(f"csv:{path}", partition="iid:1")


def test_an_archive_that_cannot_be_read_is_said_to_be_so(folder, monkeypatch):
    def refuse(self, *_):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(pathlib.Path, "open", refuse)
    with pytest.raises(TaskError, match="npz: .*Permission denied"):
        _load(f"npz:{folder}/arrays.npz")


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "csv:{}/people.csv",
            {},
            (
                "^label is missing: .*/people.csv has no column 'label', the default; "
                "expected one of dose, sex, site, ill"
            ),
        ),
        (
            "csv:{}/people.csv",
            {"label": "z"},
            "^label='z' .* a column of .*: dose, sex",
        ),
        (
            "npz:{}/arrays.npz",
            {"label": "z"},
            "^label='z' .* array of .*: x, y, who, o",
        ),
        (
            "npz:{}/arrays.npz",
            {"label": "odd"},
            r"^label='odd' .* fill in missing .* odd\.astype\(str\)",
        ),
        (
            "npz:{}/arrays.npz",
            {"features": "odd"},
            (
                "^features='odd' is not valid: expected numbers, but that array holds "
                r"Python objects: save odd\.astype\(float\) instead\.$"
            ),
        ),
        ("npz:{}/other.npz", {}, "^features is missing: .* no array 'x', .* one of z"),
    ],
)
def test_options_that_do_not_fit_the_file_are_named(name, options, message, folder):
    with pytest.raises(HyperparameterError, match=message):
        _load(name.format(folder), **options)


@pytest.mark.parametrize("categories", ["sex,site", ["sex", "site"]])
def test_columns_may_be_a_list(categories, folder):
    task = _load(f"csv:{folder}/people.csv", label="ill", categories=categories)
    assert task.examples("client_000", "train")[0].shape[1] == 6


def test_a_tilde_stands_for_the_home_folder_before_a_slash_alone(
    folder, tmp_path, monkeypatch
):
    monkeypatch.setenv("HOME", str(folder))
    assert (
        _load("csv:~/people.csv", label="ill", features="dose").dataset_name == "people"
    )
    (tmp_path / "~mine.csv").write_text((folder / "people.csv").read_text())
    monkeypatch.chdir(tmp_path)
    assert _load("csv:~mine.csv", label="ill", features="dose").dataset_name == "~mine"


def test_own_data_have_no_stand_in(folder):
    for data in ("generated", "tff"):
        with pytest.raises(TaskError, match=f"--data={data}: .* your own data"):
            _load(f"csv:{folder}/people.csv", data=data, label="ill")


def test_a_client_column_replaces_a_partition():
    with pytest.raises(
        HyperparameterError,
        match="^client_column='a' cannot be used with --partition='iid:3', which it repl",
    ):
        own_task.CsvOptions(client_column="a", partition="iid:3")


@pytest.mark.parametrize("name", ["csv", "csv:", "cvs:FILE"])
def test_forms_without_a_path_are_told_the_form(name):
    with pytest.raises(TaskError, match=r"did you mean csv:FILE\?"):
        tasks.get(name)


@pytest.mark.parametrize("word", ["NA", "NaN", "NULL", "nan", "<NA>", ""])
def test_cells_that_stand_for_nothing_are_no_class_and_no_client(word, tmp_path):
    labels, clients = tmp_path / "labels.csv", tmp_path / "clients.csv"
    labels.write_text(f"a,label\n1,x\n2,y\n3,{word}\n")
    found = f"has '{word}', a missing value," if word else "is empty"
    with pytest.raises(TaskError, match=f"column 'label' {found} in line 4"):
        _load(f"csv:{labels}")
    clients.write_text(f"a,who,label\n1,u,x\n2,{word},y\n3,u,x\n")
    with pytest.raises(TaskError, match=f"column 'who' {found} in line 3"):
        _load(f"csv:{clients}", client_column="who")

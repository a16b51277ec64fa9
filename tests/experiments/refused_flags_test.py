"""Flags that are refused: one line that names flag, value and valid choices."""

import re

import pytest

from tests.testing.command_line import (
    run_here,
)
from tff_algos.experiments import declarations

REFUSED = {
    "--server_optimizer='lion' is not valid: expected one of sgd, adagrad": [
        "--algo=uga",
        "--task=emnist",
        "--server_optimizer=lion",
    ],
    "--client_optimizer='adam' cannot be used with --algo=uga --task=emnist: ": [
        "--algo=uga",
        "--task=emnist",
        "--client_optimizer=adam",
    ],
    "--query='some' is not valid: expected one of next_batch, all, held_out": [
        "--algo=maml",
        "--task=emnist",
        "--query=some",
    ],
    r"--meta_fraction=0.0 is not valid: expected a number in \(0, 1\]": [
        "--algo=fedmeta",
        "--task=emnist",
        "--meta_fraction=0",
    ],
    "--meta_overlap=0.5 is not valid: expected 1, since every client .* also trains": [
        "--algo=fedmeta",
        "--task=mnist",
        "--meta_overlap=0.5",
    ],
    "--share_mode='none' is not valid: expected one of full, split": [
        "--algo=fedshare",
        "--task=emnist",
        "--share_mode=none",
    ],
    "--partition='iid' is not valid: .*iid:N": [
        "--algo=fedavg",
        "--task=mnist",
        "--partition=iid",
    ],
    "--algo is missing: --list shows": ["--task=emnist"],
    "--task is missing: --list shows": ["--algo=fedavg"],
    "--algo=fedavgg is unknown, did you mean fedavg[m]?": [
        "--algo=fedavgg",
        "--task=emnist",
    ],
    "--task=emnits is unknown, did you mean emnist": [
        "--algo=fedavg",
        "--task=emnits",
    ],
    "--proximal_strength=0.1 cannot be used with --algo=fedavg --task=emnist: it "
    "belongs to --algo=fedprox, --algo=fedproxm": [
        "--algo=fedavg",
        "--task=emnist",
        "--proximal_strength=0.1",
    ],
    "--only_digits=True cannot be used with .*--task=shakespeare: ": [
        "--algo=fedavg",
        "--task=shakespeare",
        "--only_digits",
    ],
    r"--client_learning_rate=-1.0 is not valid: expected a number > 0": [
        "--algo=fedavg",
        "--task=emnist",
        "--client_learning_rate=-1",
    ],
    r"--server_momentum=1.0 is not valid: expected a number in \[0, 1\)": [
        "--algo=fedavgm",
        "--task=emnist",
        "--server_momentum=1",
    ],
    "--clients_per_round=0 is not valid: expected an integer >= 1": [
        "--algo=fedavg",
        "--task=emnist",
        "--clients_per_round=0",
    ],
    "--clients_per_round=251 is more than the 250 clients": [
        "--algo=fedavg",
        "--task=emnist",
        "--model=2nn",
        "--clients_per_round=251",
    ],
    "--model='vgg' is not valid: expected one of cnn, cnn_dropout, 2nn": [
        "--algo=fedavg",
        "--task=emnist",
        "--model=vgg",
    ],
    "--client_optimizer='lbfgs' is not valid: expected one of sgd, adam": [
        "--algo=fedavg",
        "--task=emnist",
        "--client_optimizer=lbfgs",
    ],
    "--client_steps_per_round=3 .*with --client_epochs_per_round=2, which it replaces": [
        "--algo=fedavg",
        "--task=emnist",
        "--client_steps_per_round=3",
        "--client_epochs_per_round=2",
    ],
    r"--total_rounds=10 .*pretrain_rounds \+ finetune_rounds": [
        "--algo=personalized_fedavg",
        "--task=emnist",
        "--total_rounds=10",
        "--pretrain_rounds=6",
        "--finetune_rounds=6",
    ],
    "--rounds_per_checkpoint=0 is not valid": [
        "--algo=fedavg",
        "--task=emnist",
        "--rounds_per_checkpoint=0",
    ],
    "--attack='noise:1' is not valid: expected bias:VALUE .* scale:VALUE .* scale_update:VALUE": [
        "--algo=qfedavg",
        "--task=emnist",
        "--attack=noise:1",
    ],
    "--malicious_clients='0.1' cannot be used without --attack": [
        "--algo=qfedavg",
        "--task=emnist",
        "--malicious_clients=0.1",
    ],
    r"--malicious_clients='bob' is not valid: expected a share in \(0, 1\] or ids out": [
        "--algo=qfedavg",
        "--task=emnist",
        "--attack=bias:10",
        "--malicious_clients=bob",
    ],
    "--malicious_clients='0.1' .*clients_per_round=2 clients, found 25, or --nomal": [
        "--algo=qfedavg",
        "--task=emnist",
        "--attack=bias:10",
        "--malicious_clients=0.1",
        "--clients_per_round=2",
    ],
    "--attack='scale:2' .*trains on clients, not on pooled data": [
        "--algo=centralized",
        "--task=emnist",
        "--attack=scale:2",
    ],
    "--client_momentum=0.9 is not valid: expected 0, adam has no momentum": [
        "--algo=fedavg",
        "--task=emnist",
        "--client_optimizer=adam",
        "--client_momentum=0.9",
    ],
    "--epsilon=-1.0 is not valid: expected a number >= 0": [
        "--algo=fedmgda",
        "--task=emnist",
        "--epsilon=-1",
    ],
    "--q=1.0 cannot be used with --algo=fedmgda --task=emnist: it belongs to "
    "--algo=qfedavg": [
        "--algo=fedmgda",
        "--task=emnist",
        "--q=1",
    ],
    "Expected runtime_devices out of CPU:0, found 'GPU:7'": [
        "--algo=fedavg",
        "--task=emnist",
        "--runtime_devices=CPU:0,GPU:7",
    ],
    "--runtime_devices='CPU:0' cannot be used with --runtime=native: ": [
        "--algo=fedavg",
        "--task=emnist",
        "--runtime=native",
        "--runtime_devices=CPU:0",
    ],
    "ray_address: expected HOST:PORT .* found 'nowhere'|needs the package ray": [
        "--algo=fedavg",
        "--task=emnist",
        "--runtime=ray",
        "--ray_address=nowhere",
    ],
    "'emnist' is not a flag": ["--algo=fedavg", "emnist"],
    r"--algo=fedavgfedavg.*\.\.\. \(6000 characters\) is unknown\. One of: ": [
        "--algo=" + "fedavg" * 1000,
        "--task=emnist",
    ],
    r"--task=a{80}\.\.\. \(5000 characters\) is unknown\. One of: ": [
        "--algo=fedavg",
        "--task=" + "a" * 5000,
    ],
    r"'a{79}\.\.\. \(5002 characters\) is not a flag": ["--algo=fedavg", "a" * 5000],
    r"--attack='a{79}\.\.\. \(5002 characters\) is not valid: expected bias:VALUE": [
        "--algo=qfedavg",
        "--task=emnist",
        "--attack=" + "a" * 5000,
    ],
    r"--local_rows='a{79}\.\.\. \(5002 .*: expected a list of": [
        "--algo=gradma",
        "--task=mnist",
        "--local_rows=" + "a" * 5000,
    ],
    r"--partition='iid:10{74}\.\.\. \(5007 .* N an integer >= 1 and at most 2147483647": [
        "--algo=fedavg",
        "--task=mnist",
        "--partition=iid:1" + "0" * 5000,
    ],
    r"flag --clients_per_round=10{299}\.\.\. \(5001 characters\): Exceeds .*\. --help": [
        "--algo=fedavg",
        "--task=emnist",
        "--clients_per_round=1" + "0" * 5000,
    ],
    r"--cache_dir='/a+\.\.\. \(5003 characters\) is not valid: expected a shorter path": [
        "--algo=fedavg",
        "--task=emnist",
        "--data=tff",
        "--cache_dir=/" + "a" * 5000,
    ],
    r"--clients_per_round='x' is not valid: expected an integer >= 1\. --help": [
        "--clients_per_round=x",
    ],
    "--client_learning_rate='fast' is not valid: expected a number > 0": [
        "--client_learning_rate=fast"
    ],
    "--adaptive_mixing='x' is not valid: expected True or False": [
        "--adaptive_mixing=x"
    ],
    r"--client_lr is unknown, did you mean --client_learning_rate\?": ["--client_lr=1"],
    "flag --data=real: value should be one of <auto|tff|generated>": ["--data=real"],
    "--stderrthreshold must be one of .*'debug', .*, not 'x'": ["--stderrthreshold=x"],
    "Unknown level: 'y'": ["--logger_levels=x:y"],
    "--nolist=3 does not take an argument": ["--nolist=3"],
    r"--algos is unknown, did you mean --algo\? --help": ["--algos=fedavg"],
    r"--nonsense_xyz is unknown\. --help": ["--nonsense_xyz"],
    "Unable to open flagfile: .* No such file .*'no.flags'": ["--flagfile=no.flags"],
    r"Unable to open flagfile: .* Is a directory: '\.'": ["--flagfile", "."],
}

_INTEGER_FLAGS = {
    name: by_user
    for name, by_user in declarations.load().users.items()
    if any(field.kind is int for field in by_user.values())
}


@pytest.mark.parametrize("message", REFUSED)
def test_bad_flags_are_one_line_that_names_flag_value_and_range(
    message, tmp_path, capfd
):
    arguments = ["--data=generated", *REFUSED[message], f"--output_dir={tmp_path}"]
    finished = run_here(capfd, *arguments)
    assert finished.status == 2
    errors = [line for line in finished.err.splitlines() if "error" in line]
    assert len(errors) == 1
    assert re.search(f"^error: {message}", errors[0]), errors[0]
    assert "Traceback" not in finished.err
    assert not (tmp_path / "metrics.csv").exists()


@pytest.mark.parametrize("value", ["1" + "0" * 400, str(10**30), str(2**31)])
@pytest.mark.parametrize("name", _INTEGER_FLAGS)
def test_integers_that_tensorflow_cannot_count_are_one_line(name, value, capfd):
    user = next(iter(_INTEGER_FLAGS[name]))
    algo = user.removeprefix("--algo=") if user.startswith("--algo") else "fedavg"
    task = user.removeprefix("--task=") if user.startswith("--task") else "mnist"
    finished = run_here(capfd, f"--algo={algo}", f"--task={task}", f"--{name}={value}")
    assert finished.status == 2
    (line,) = finished.err.splitlines()
    assert re.match(rf"error: --{name}={value[:80]}.* is not valid: expected an", line)
    assert line.endswith(" and at most 2147483647.") and len(line) < 300

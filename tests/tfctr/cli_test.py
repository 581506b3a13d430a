"""The command line: what it prints, writes and returns."""

import errno
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tomllib

import keras
import pytest
import tensorflow as tf

from tfctr import cli, study, training

ROOT = pathlib.Path(__file__).resolve().parents[2]
SYNTHETIC = str(ROOT / "examples" / "synthetic.toml")
TINY = [
    "data.num_examples=500",
    "data.fields=2",
    "data.ids_per_field=20",
    "model.dim=2",
    "model.hidden_units=[4]",
    "run.epochs=1",
    "run.batch_size=64",
]


def sets(*overrides):
    return [word for override in overrides for word in ("--set", override)]


def assert_refused(arguments, message, capsys):
    assert cli.main(arguments) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("tfctr: ")
    assert message in streams.err


def test_the_command_of_the_environment_is_that_of_a_wheel():
    program = pathlib.Path(sys.executable).with_name("tfctr")
    shown = subprocess.run([program, "--help"], capture_output=True, text=True)
    assert shown.returncode == 0 and "  train " in shown.stdout, shown.stderr
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    module, _, name = declared["scripts"]["tfctr"].partition(":")
    assert getattr(importlib.import_module(module), name) is cli.main


def test_who_interrupts_a_command_sees_no_traceback(monkeypatch, capsys):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "train", interrupted)
    assert cli.main(["train", SYNTHETIC]) == 130
    assert capsys.readouterr().err == "\ntfctr: interrupted.\n"


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_command_that_nobody_reads_any_more_ends_without_a_word(unbuffered):
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "tfctr", "topology"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(
        command, env=environment, stdout=writer, stderr=subprocess.PIPE, text=True
    )
    os.close(writer)
    assert (ended.returncode, ended.stderr) == (141, "")


def test_what_a_full_disk_does_not_take_is_told_once():
    command = [sys.executable, "-m", "tfctr", "topology"]
    with open("/dev/full", "w") as full:
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    # TensorFlow may tell of itself before, and Python nothing of stdout after it.
    assert ended.returncode == 2
    assert ended.stderr.endswith("tfctr: [Errno 28] No space left on device\n")
    assert ended.stderr.count("Errno") == 1


def test_train_reports_and_writes_the_result(tmp_path, capsys):
    file = tmp_path / "result.json"
    overrides = sets(*TINY, f"run.directory={tmp_path}/run")
    assert cli.main(["train", SYNTHETIC, *overrides, "--json", str(file)]) == 0
    result = json.loads(file.read_text())
    printed = capsys.readouterr().out
    assert f"  test AUC      {result['auc']:.4f}   (best reachable" in printed
    assert printed.endswith(f"\n  model         {tmp_path}/run/model.keras\n")
    assert (tmp_path / "run" / "model.keras").is_file()
    assert result["config"]["data"]["num_examples"] == 500
    # What no override named is that of the file.
    assert result["config"]["model"]["dropout"] == 0.2


def full_disk(*arguments):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_save_that_fails_comes_after_the_results(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(keras.Model, "save", full_disk)
    file = tmp_path / "result.json"
    overrides = sets(*TINY, f"run.directory={tmp_path}/run")
    assert cli.main(["train", SYNTHETIC, *overrides, "--json", str(file)]) == 2
    streams = capsys.readouterr()
    result = json.loads(file.read_text())
    assert f"  test AUC      {result['auc']:.4f}" in streams.out
    assert "  model  " not in streams.out
    assert streams.err.startswith(
        f"tfctr: '{tmp_path}/run/model.keras' must be written to its end. Received: No "
        "space left on device. Make room there, or"
    )
    assert list((tmp_path / "run").iterdir()) == []


def test_results_that_cannot_be_written_do_not_keep_the_model_from_it(tmp_path, capsys):
    overrides = sets(*TINY, f"run.directory={tmp_path}/run")
    assert cli.main(["train", SYNTHETIC, *overrides, "--json", "/dev/full"]) == 2
    assert capsys.readouterr().err == (
        "tfctr: --json must name a file that can be written. Received: "
        "--json /dev/full (No space left on device).\n"
    )
    assert (tmp_path / "run" / "model.keras").is_file()


def test_train_writes_no_result_unless_asked(tmp_path, capsys):
    overrides = sets(*TINY, f"run.directory={tmp_path}/run")
    assert cli.main(["train", SYNTHETIC, *overrides]) == 0
    assert sorted(x.name for x in tmp_path.rglob("*.*")) == [
        "config.json",
        "model.keras",
    ]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.epoch=1", "has no 'run.epoch'."),
        ("run.epochs=x", "'run.epochs' must be an integer. Received: run.epochs='x'."),
        ("run.epochs", "Received: 'run.epochs'."),
        ("data.kind=csv", "Received: data.kind='csv'."),
    ],
)
def test_bad_overrides_are_refused(override, message, tmp_path, capsys):
    overrides = sets(f"run.directory={tmp_path}", override)
    assert_refused(["train", SYNTHETIC, *overrides], message, capsys)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (
            "tables.ram=1KB",
            "is full: the budget of ram=1000 bytes is used up by rows of",
        ),
        (
            "tables.learning_rate=1e30",
            "must lie in [0, 1e+06]. Received: learning_rate=1e+30.",
        ),
        (
            "run.learning_rate=1e30",
            "received a gradient that is NaN, infinite or larger than 1e12",
        ),
        (
            # Beyond all address space.
            "data.num_examples=1000000000000000",
            "The memory of this machine does not suffice. Unable to allocate ",
        ),
        ("model.dim=1000000000000000", "The memory of this machine does not suffice."),
        (
            "tables.ram=99999999999TB",
            "'tables.ram' must be below 2**63 bytes. Received: tables.ram='99999999999T"
            "B'. Leave it empty for no limit.",
        ),
        (
            "run.batch_size=9223372036854775808",
            "'run.batch_size' must be an integer of at most 64 bits. Received: "
            "run.batch_size=9223372036854775808.",
        ),
    ],
)
def test_what_cannot_be_done_ends_without_a_traceback(
    override, message, tmp_path, capsys
):
    overrides = sets(*TINY, f"run.directory={tmp_path}", override)
    assert cli.main(["train", SYNTHETIC, *overrides]) == 2
    (line,) = [x for x in capsys.readouterr().err.splitlines() if x]
    assert re.match("tfctr: (Table|The learning rate|The memory|'tables|'run)", line)
    assert message in line
    assert "[[" not in line  # TensorFlow's node.
    assert list(tmp_path.iterdir()) == []


def test_what_is_noted_on_an_error_is_told_too(monkeypatch, capsys):
    error = OSError("The disk is full.")
    error.add_note("The newest whole checkpoint is 'a'.")

    def fail(*_):
        raise error

    monkeypatch.setattr("tfctr.checkpoint.inspection.inspect", fail)
    assert cli.main(["inspect", "a"]) == 2
    assert "The disk is full. The newest whole checkpoint" in capsys.readouterr().err


def test_of_an_error_of_tensorflow_its_message_is_told(monkeypatch, tmp_path, capsys):
    path = str(tmp_path / "none")
    monkeypatch.setattr(
        "tfctr.checkpoint.inspection.inspect", lambda _: tf.io.read_file(path)
    )
    assert cli.main(["inspect", "a"]) == 2
    told = capsys.readouterr().err
    assert told == f"tfctr: {path}; No such file or directory\n"


def test_errors_of_ours_keep_their_traceback(monkeypatch):
    def fail(config):
        raise RuntimeError("not the user's")

    monkeypatch.setattr(training, "train", fail)
    with pytest.raises(RuntimeError, match="not the user's"):
        cli.main(["train", SYNTHETIC])


def test_a_missing_config_is_refused(capsys):
    message = "Received: no/such.toml, which is no file."
    assert_refused(["train", "no/such.toml"], message, capsys)


def test_missing_data_is_refused(tmp_path, capsys):
    overrides = sets(
        "data.kind=movielens", f"data.path={tmp_path}/no", f"run.directory={tmp_path}"
    )
    message = f"Received: path='{tmp_path}/no', which does not exist."
    assert_refused(["train", SYNTHETIC, *overrides], message, capsys)


def test_data_goes_with_the_bench_that_replays_it(capsys):
    message = (
        "--data goes with policy, which replays it. Received: bench step --data ml-1m."
    )
    assert_refused(["bench", "step", "--data", "ml-1m"], message, capsys)


def test_a_trace_that_is_not_there_is_refused(tmp_path, capsys):
    message = (
        "--data must name the directory of MovieLens 1M, with its ratings.dat. "
        f"Received: --data {tmp_path}."
    )
    assert_refused(["bench", "policy", "--data", str(tmp_path)], message, capsys)


@pytest.mark.parametrize("command", [["train", SYNTHETIC], ["bench", "step"]])
@pytest.mark.parametrize("file", ["none/result.json", ""])
def test_json_that_cannot_be_written_is_refused_before_the_work(
    command, file, tmp_path, capsys
):
    path = str(tmp_path / file)
    message = (
        f"--json must name a file in a directory that exists. Received: --json {path}."
    )
    assert_refused([*command, "--json", path], message, capsys)


def test_a_directory_goes_with_what_measures_a_disk(tmp_path, capsys):
    message = (
        "--directory goes with the benchmarks serve, snapshot, ssd, which write to a "
        f"disk. Received: grow --directory {tmp_path}. Leave it out."
    )
    assert_refused(["bench", "grow", "--directory", str(tmp_path)], message, capsys)


@pytest.mark.parametrize("what", ["ssd", "snapshot"])
def test_a_disk_that_cannot_be_measured_is_refused(what, tmp_path, capsys):
    message = f"Received: --directory {tmp_path}/none."
    command = ["bench", what, "--directory", f"{tmp_path}/none"]
    assert_refused(command, message, capsys)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the following arguments are required: COMMAND"),
        (["explain"], "invalid choice: 'explain'"),
        (["study", "small-batch"], "invalid choice: 'small-batch'"),
        (
            ["study", "large-batch", SYNTHETIC, "--batch-sizes", "1,a"],
            "expected integers with commas between them, such as 128,8192, not 1,a",
        ),
        (["train"], "the following arguments are required: config"),
        (["bench", "nothing"], "invalid choice: 'nothing'"),
        (["train", SYNTHETIC, "--epochs", "3"], "unrecognized arguments: --epochs 3"),
    ],
)
def test_unknown_commands_and_options_are_refused(arguments, message, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_study_is_asked_for_what_the_options_say(monkeypatch, tmp_path, capsys):
    asked = []

    def large_batch(config, *arguments):
        asked.append((config.data.num_examples, *arguments))
        return []

    monkeypatch.setattr(study, "large_batch", large_batch)
    command = ["study", "large-batch", SYNTHETIC, *sets("data.num_examples=500")]
    sizes = ["--batch-sizes", "64,128"]
    names = ["--rules", "none,sqrt", "--networks", "dcn,dlrm"]
    output = f"{tmp_path}/study.csv"
    assert cli.main([*command, *sizes]) == 0
    assert cli.main([*command, *sizes, *names, "--output", output]) == 0
    assert asked == [
        (500, [64, 128], list(study.RULES), [], None),
        (500, [64, 128], ["none", "sqrt"], ["dcn", "dlrm"], output),
    ]
    assert capsys.readouterr().out.startswith("| network | rule |")

"""The command line. It parses arguments and calls; it holds no logic."""

import argparse
import importlib
import json
import os
import pathlib
import sys
from collections.abc import Sequence

BENCHES = ("step", "scale", "grow", "fit", "ssd", "snapshot", "policy", "horovod")
# Those that write gigabytes to a disk.
DISK_BENCHES = ("ssd", "snapshot")
STUDY_RULES = ("none", "sqrt", "linear", "cowclip")
# Those of tfctr.migration, which imports TensorFlow.
TFRA_OPTIMIZERS = ("sgd", "adagrad", "adam", "ftrl")


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs a command and returns its exit code.

    Args:
        arguments: Strings. `None` means those of the process.
    """
    options = _parser().parse_args(arguments)
    # TensorFlow logs errors at every start, about CUDA plug-ins that are registered
    # twice; what goes wrong later reaches us as exceptions.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    try:
        return int(options.run(options))
    except Exception as error:
        if not isinstance(error, _mistakes()):
            raise
        print(f"tfctr: {_reason(error)}", file=sys.stderr)
        return 2


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tfctr",
        description="Trains click-through-rate models and measures the speed of tfctr.",
    )
    commands = parser.add_subparsers(required=True, metavar="COMMAND")

    train = commands.add_parser("train", help="train a model from a TOML file")
    _add_config(train)
    train.add_argument("--json", metavar="FILE", help="write the results there")
    train.set_defaults(run=_train)

    inspect = commands.add_parser(
        "inspect", help="say what a checkpoint or a store holds, and if it is whole"
    )
    inspect.add_argument(
        "directory",
        help="of checkpoints, or of one, or a snapshot, or the ssd of tables",
    )
    inspect.add_argument("--json", metavar="FILE", help="write the results there")
    inspect.set_defaults(run=_inspect)

    tfra = commands.add_parser(
        "import-tfra", help="turn tables that TFRA has saved into a snapshot"
    )
    tfra.add_argument(
        "source", help="a checkpoint, a SavedModel, or a directory of -keys files"
    )
    tfra.add_argument("directory", help="of the snapshot; must not exist")
    tfra.add_argument(
        "--table",
        action="append",
        required=True,
        metavar="NAME=TABLE/FEATURE",
        dest="tables",
        help="a table of TFRA, and the names of its TableConfig and its feature, or "
        "FEATURE/COLUMN of a per_column one; may be repeated",
    )
    tfra.add_argument("--dim", type=int, required=True, help="width of the tables")
    tfra.add_argument(
        "--optimizer",
        required=True,
        choices=TFRA_OPTIMIZERS,
        help="whose slots come along",
    )
    tfra.add_argument(
        "--step", type=int, help="steps of the optimizer, where no checkpoint says it"
    )
    tfra.set_defaults(run=_import_tfra)

    study = commands.add_parser("study", help="train one model in many ways")
    study.add_argument("what", choices=("large-batch",))
    _add_config(study)
    study.add_argument(
        "--batch-sizes",
        required=True,
        type=_integers,
        metavar="N,N,...",
        help="multiples of run.batch_size",
    )
    study.add_argument(
        "--rules",
        default=list(STUDY_RULES),
        type=_words,
        metavar="RULE,RULE,...",
        help="by which learning rates grow; by default " + ",".join(STUDY_RULES),
    )
    study.add_argument(
        "--networks",
        default=[],
        type=_words,
        metavar="NAME,NAME,...",
        help="names of models; that of the config by default",
    )
    study.add_argument(
        "--output",
        metavar="FILE",
        help="the CSV file; benchmarks/large_batch_DATASET.csv by default",
    )
    study.set_defaults(run=_study)

    topology = commands.add_parser(
        "topology", help="show processors, memory and devices of a machine"
    )
    source = topology.add_mutually_exclusive_group()
    source.add_argument(
        "--sysfs",
        metavar="DIR",
        help="of the machine whose sys/ and proc/ lie there, instead of this one",
    )
    source.add_argument(
        "--hwloc-xml", metavar="FILE", help="of the machine that lstopo has written"
    )
    topology.add_argument(
        "--json", action="store_true", help="print JSON instead of text"
    )
    topology.set_defaults(run=_topology)

    bench = commands.add_parser("bench", help="measure, beside the peers")
    bench.add_argument("what", choices=BENCHES)
    bench.add_argument("--json", metavar="FILE", help="write the results there")
    bench.add_argument(
        "--directory",
        metavar="DIR",
        help="of ssd and snapshot: on the disk to measure; the current one by default",
    )
    bench.add_argument(
        "--data", metavar="DIR", help="of policy: MovieLens 1M, to replay it too"
    )
    bench.set_defaults(run=_bench)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("config", help="TOML file; see examples/")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="SECTION.KEY=VALUE",
        dest="overrides",
        help="override an entry of the file; may be repeated",
    )


def _words(text: str) -> list[str]:
    return text.split(",")


def _integers(text: str) -> list[int]:
    try:
        return [int(word) for word in _words(text)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"expected integers with commas between them, such as 128,8192, not {text}"
        ) from None


def _train(options: argparse.Namespace) -> int:
    # Imported here, so that `--help` does not wait for TensorFlow.
    from tfctr import distributed, training
    from tfctr.config import TrainConfig

    config = TrainConfig.load(options.config, options.overrides)
    _check_json(options.json)
    model, result = training.train(config)
    is_main = distributed.is_main()
    if is_main:
        print(training.report(result), flush=True)
    # Neither of them is lost where the other cannot be written.
    try:
        _write_json(options.json if is_main else None, result)
    finally:
        path = training.save(model, config)
    if is_main:
        print(f"  {'model':<14}{path}")
    return 0


def _inspect(options: argparse.Namespace) -> int:
    from tfctr.checkpoint import inspection

    _check_json(options.json)
    result = inspection.inspect(options.directory)
    print(inspection.report(result))
    _write_json(options.json, result)
    return 0 if inspection.is_whole(result) else 1


def _import_tfra(options: argparse.Namespace) -> int:
    from tfctr.migration import import_tfra

    tables: dict[str, str] = {}
    for pair in options.tables:
        name, _, feature = pair.partition("=")
        if name in tables:
            raise ValueError(
                "--table must name each table of TFRA once. Received: --table "
                f"{name}={tables[name]} --table {pair}. Leave one out."
            )
        tables[name] = feature
    report = import_tfra(
        options.source,
        options.directory,
        tables,
        options.dim,
        options.optimizer,
        options.step,
    )
    for table in report:
        print(
            f"{table.name} -> {table.feature}: {table.rows:,} rows, "
            f"{table.rows_without_slots:,} of them without optimizer slots"
        )
    print(
        f"Written. Read it with restore_snapshot({options.directory!r}) of the layer."
    )
    return 0


def _study(options: argparse.Namespace) -> int:
    from tfctr import study
    from tfctr.config import TrainConfig

    rows = study.large_batch(
        TrainConfig.load(options.config, options.overrides),
        options.batch_sizes,
        options.rules,
        options.networks,
        options.output,
    )
    print(study.table(rows))
    return 0


def _topology(options: argparse.Namespace) -> int:
    from tfctr.topology import Machine, render

    if options.sysfs is not None:
        machine = Machine.from_sysfs(options.sysfs)
    elif options.hwloc_xml is not None:
        machine = Machine.from_hwloc_xml(options.hwloc_xml)
    else:
        machine = Machine.read()
    if options.json:
        print(json.dumps({"machine": machine.to_dict()}, indent=2))
    else:
        print(render(machine))
    return 0


def _bench(options: argparse.Namespace) -> int:
    bench = importlib.import_module(f"tfctr.bench.{options.what}")
    _check_json(options.json)
    arguments = {}
    if options.directory is not None and options.what not in DISK_BENCHES:
        raise ValueError(
            f"--directory goes with the benchmarks {' and '.join(DISK_BENCHES)}, which "
            f"write to a disk. Received: {options.what} --directory "
            f"{options.directory}. Leave it out."
        )
    if options.directory is not None:
        arguments["directory"] = options.directory
    if options.data is not None and options.what != "policy":
        raise ValueError(
            "--data goes with policy, which replays it. "
            f"Received: bench {options.what} --data {options.data}."
        )
    if options.data is not None:
        arguments["data"] = options.data
    result = bench.run(**arguments)
    print(bench.table(result))
    _write_json(options.json, result)
    return 0


def _check_json(path: str | None) -> None:
    """Finds out before the work, not after it."""
    if path is None:
        return
    file = pathlib.Path(path).absolute()
    if file.is_dir() or not file.parent.is_dir():
        raise ValueError(
            "--json must name a file in a directory that exists. "
            f"Received: --json {path}."
        )


def _write_json(path: str | None, result: object) -> None:
    if path is None:
        return
    try:
        pathlib.Path(path).write_text(json.dumps(result, indent=2) + "\n")
    except OSError as error:
        raise OSError(
            "--json must name a file that can be written. Received: "
            f"--json {path} ({error.strerror})."
        ) from error


def _mistakes() -> tuple[type[Exception], ...]:
    """What wrong arguments end in. Everything else is an error of ours."""
    import tensorflow as tf

    return (ValueError, OSError, MemoryError, OverflowError, tf.errors.OpError)


def _reason(error: Exception) -> str:
    if isinstance(error, MemoryError):
        return f"The memory of this machine does not suffice. {error}".rstrip()
    # TensorFlow puts a heading before a message, and the place in the graph behind it.
    text = str(getattr(error, "message", error))
    return text.removeprefix("Graph execution error:").partition("\n\t [[")[0].strip()

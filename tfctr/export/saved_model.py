"""`saved_model`: a model for servers that know TensorFlow alone."""

import contextlib
import os
import pathlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_layers.dynamic_embedding import layers_of
from keras_layers.frozen_tables import frozen_tables
from keras_layers.storage.byte_size import parse_bytes
from keras_layers.storage.storage import KeyPairs, Table
from keras_layers.table_group import TableGroup
from tfctr.distributed import engine
from tfctr.distributed.saving import gather_counts, gather_vectors
from tfctr.export.draft import EXTRA, new_directory, refuse_existing, write_manifest
from tfctr.export.model_inputs import ModelInputs, Tensors
from tfctr.export.resources import resources_of
from tfctr.export.selection import Usage, is_among, most_used, row_bytes
from tfctr.export.served_table import SERVED_OPS, ServedTable, located, served_tables
from tfctr.export.stock_ops import check_ops
from tfctr.export.stock_table import QUANTIZATIONS, StockTable
from tfctr.export.warm_up import write_warm_up

CHECKED_ROWS = f"{EXTRA}/tfctr_examples.npz"
EXAMPLES_INPUT = "examples"
TABLES = ("stock", "store")

StandIn = StockTable | ServedTable


def saved_model(
    model: keras.Model,
    directory: str | os.PathLike[str],
    tables: str = "stock",
    quantize: str | None = None,
    examples: Any = None,
    file_size: int | str | None = None,
    max_bytes: int | str | None = None,
    ram: int | str | None = None,
    ssd: str | os.PathLike[str] | None = None,
) -> pathlib.Path:
    """Exports a model as a SavedModel that any TensorFlow loads, without tfctr.

    Ids that were never trained read their table's default row, and every other id its
    own row, as in `model.predict`: keys are compared in full. Optimizer slots stay
    behind.

    The signature `serving_default` takes the model's inputs by name; a ragged input
    NAME as its values, and where those of each example begin as NAME_row_splits.
    `serving_examples` takes serialized `tf.train.Example`s as `examples`; it is left
    out if the width of a dense input may change from batch to batch. Outputs have the
    names that the model gives them, or `output`.

    With tables on several ranks, all ranks call it; their rows pass through the memory
    of rank 0, which writes. While it is made, an export takes four times the memory of
    its rows. A table holds up to 2³⁰ keys.

    Args:
        model: Keras model, functional or a subclass, built. Of ranks whose dense
            weights differ, those of rank 0 are exported.
        directory: Path, which must not exist, such as `"export/ads/1"`. It appears when
            the export is complete. Its parent is the name of the model in warm-up
            requests.
        tables: String. `"stock"`: tables become variables, read by built-in ops.
            `"store"`: they become embedding stores that are only read, for servers that
            link the library `tfctr_ops.library.path()`; there is no delta of them.
        quantize: String. `"float16"` or `"int8"` rows, the latter with a scale of each
            row's own; default rows are rounded likewise. `None` keeps float32.
        examples: A batch of inputs, as the model takes them. They become the warm-up
            requests of TensorFlow Serving, and with the model's predictions what
            `check` compares; and tell the inputs of a model that is not functional.
        file_size: Bytes, such as `"1GB"`. Files of variables are split there, and rows
            over several of them. `None` writes one file.
        max_bytes: Bytes, such as `"4GB"`, of all rows and their keys. The rows that saw
            the most updates for their bytes are kept; ids without one read the default
            row. `assets.extra/tfctr.json` says by `coverage` what share of each table's
            updates those have seen. Updates are counted, of an id once a step, and not
            lookups: ids that requests ask for often and training saw seldom count as
            seldom used. `None` keeps all.
        ram: Bytes, such as `"4GB"`, with `tables="store"`. How much of the server's
            memory all rows take, the index on top; each table has a part of it, in
            proportion to its rows. Those that saw the most updates stay there, and the
            others are read from `ssd`. `None` means no limit.
        ssd: Path, on the server, with `ram`. A directory for scratch on a fast disk:
            rows are copied to a directory of their own in it when the model is loaded,
            and that is gone when the model is. `None`: the server's temporary
            directory.

    Returns:
        The directory.

    Raises:
        ValueError: If an argument is none of these, the directory exists, the model is
            not built, has two layers of one name, or needs an op that is not
            TensorFlow's own.
        OSError: If a file cannot be written, which TensorFlow tells of its files by a
            `tf.errors.OpError`; or, on the other ranks, if rank 0 failed.

    Example:

    >>> import tempfile
    >>> table = TableConfig("ads", dim=2, optimizer=keras.optimizers.SGD())
    >>> ids = keras.Input((3,), dtype="int64", name="ids")
    >>> model = keras.Model(ids, DynamicEmbedding(FeatureConfig(table))(ids))
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     path = saved_model(model, f"{directory}/1")
    ...     served = tf.saved_model.load(path).signatures["serving_default"]
    >>> [vectors] = served(ids=tf.constant([[1, 2, 3]], tf.int64)).values()
    >>> vectors.shape
    TensorShape([1, 3, 2])
    """
    path = pathlib.Path(directory).absolute()
    _check_options(tables, quantize)
    _check_store(tables, {"quantize": quantize, "max_bytes": max_bytes}, ram, ssd)
    options = _save_options(file_size)
    limit = None if max_bytes is None else parse_bytes("max_bytes", max_bytes)
    ram_bytes = None if ram is None else parse_bytes("ram", ram)
    ssd = None if ssd is None else os.fspath(ssd)
    if not model.built:
        raise ValueError(
            f"Model '{model.name}' must be built before it is exported. Received: a "
            "model without weights yet. Call it once on a batch."
        )
    with _on_all_ranks(path, "checked"):
        if engine.is_main():
            refuse_existing(path)
            inputs = ModelInputs.of(model, examples)
            request = None if examples is None else inputs.to_tensors(examples)
    # Both of them read the tables of all ranks.
    groups = _groups(model)
    served = served_tables(groups, ram_bytes, ssd) if tables == "store" else []
    stand_ins: Sequence[StandIn] = served
    coverage: dict[str, float] = {}
    if tables == "stock":
        stand_ins, coverage = _stock_tables(groups, quantize, limit)
    predicted = None if examples is None else _predict(model, examples)
    with _on_all_ranks(path, "written"):
        if engine.is_main():
            live = [group.table for group in groups.values()]
            frozen = dict(zip(live, stand_ins, strict=True))
            module, signatures = _module(model, inputs, frozen)
            with new_directory(path) as draft:
                with located(served, module):
                    tf.saved_model.save(module, str(draft), signatures, options)
                for table in served:
                    table.write(draft)
                if request is not None and predicted is not None:
                    requests = [("serving_default", request)]
                    write_warm_up(draft, requests, path.parent.name)
                    _write_examples(draft / CHECKED_ROWS, request, predicted)
                write_manifest(
                    draft,
                    {
                        "model": model.name,
                        "quantize": quantize,
                        "store": {"ram": ram_bytes, "ssd": ssd}
                        if tables == "store"
                        else None,
                        "tables": {each.label: each.num_rows for each in stand_ins},
                        "coverage": coverage,
                        "inputs": list(inputs.tensor_specs()),
                        "outputs": list(
                            signatures["serving_default"].structured_outputs
                        ),
                    },
                )
    return path


@contextlib.contextmanager
def _on_all_ranks(path: pathlib.Path, name: str) -> Iterator[None]:
    """Raises on all ranks if what is within it raises on rank 0."""
    error: Exception | None = None
    try:
        yield
    except Exception as raised:  # The others wait to hear of it.
        error = raised
    texts = engine.gather_objects(error and str(error), f"export.{name}")
    if error is not None:
        raise error
    if texts[0] is not None:
        raise OSError(f"Rank 0 could not export the model to '{path}': {texts[0]}")


def _check_options(tables: str, quantize: str | None) -> None:
    if tables not in TABLES:
        raise ValueError(
            "`tables` must be 'stock', which makes variables of them, or 'store'. "
            f"Received: tables={tables!r}."
        )
    if quantize is not None and quantize not in QUANTIZATIONS:
        known = ", ".join(map(repr, QUANTIZATIONS))
        raise ValueError(
            f"`quantize` must be None or one of {known}. "
            f"Received: quantize={quantize!r}."
        )


def _check_store(tables: str, stock: Mapping[str, Any], ram: Any, ssd: Any) -> None:
    """Checks that options go with the tables that there will be."""
    store = {"ram": ram, "ssd": ssd}
    kind, others = ("stock", stock) if tables == "store" else ("store", store)
    given = [f"{name}={value!r}" for name, value in others.items() if value is not None]
    if given:
        names = " and ".join(f"`{name}`" for name in others)
        raise ValueError(
            f"{names} go with tables='{kind}'. "
            f"Received: tables={tables!r}, {', '.join(given)}."
        )
    if ssd is not None and ram is None:
        raise ValueError(
            "With `ssd`, `ram` must say how many bytes of rows stay in memory. "
            f"Received: ram=None, ssd='{ssd}'."
        )


def _save_options(file_size: int | str | None) -> tf.saved_model.SaveOptions:
    if file_size is None:
        return tf.saved_model.SaveOptions()
    limit = parse_bytes("file_size", file_size)
    policy = tf.train.experimental.MaxShardSizePolicy(max_shard_size=limit)
    return tf.saved_model.SaveOptions(experimental_sharding_callback=policy)


def _groups(model: keras.Model) -> dict[str, TableGroup]:
    """Returns the live tables by their names in the export."""
    layers = layers_of(model)
    names = [layer.name for layer in layers]
    if len(set(names)) < len(names):
        raise ValueError(
            "Tables of an export are named by their layers, each by a name of its own. "
            f"Received: layers {names} of model '{model.name}'. Name them apart: "
            "DynamicEmbedding(..., name=...)."
        )
    return {
        f"{layer.name}/{group.config.name}": group
        for layer in layers
        for group in layer.groups
    }


def _stock_tables(
    groups: Mapping[str, TableGroup], quantize: str | None, max_bytes: int | None
) -> tuple[list[StockTable], dict[str, float]]:
    """Returns what stands in for each live table; on rank 0 alone with its rows.

    And the share of the updates that the rows which it keeps have seen.
    """
    kept: dict[str, KeyPairs] = {}
    coverage: dict[str, float] = {}
    if max_bytes is not None and groups:
        usages = {
            name: Usage(
                *gather_counts(group.table), row_bytes(group.config.dim, quantize)
            )
            for name, group in groups.items()
        }
        kept, coverage = most_used(usages, max_bytes)
    found = []
    for name, group in groups.items():
        dim = group.config.dim
        keys, rows = gather_vectors(group.table, dim)
        if name in kept:
            stays = is_among(keys, kept[name])
            keys, rows = keys[stays], rows[stays]
        default_row = group.config.default_row or (0.0,) * dim
        found.append(StockTable(name, keys, rows, default_row, quantize))
    return found, coverage


def _module(
    model: keras.Model, inputs: ModelInputs, frozen: Mapping[Table, StandIn]
) -> tuple[tf.Module, dict[str, Any]]:
    """Returns what is saved, and its signatures."""
    signatures = _signatures(model, inputs, frozen)
    module = tf.Module()
    module.tables = list(frozen.values())
    module.weights = _weights(model, signatures.values(), module.tables)
    module.resources = resources_of(model)
    return module, signatures


def _weights(
    model: keras.Model, functions: Iterable[Any], tables: Iterable[StandIn]
) -> list[tf.Variable]:
    """Returns what predictions need: no counters, no state of the optimizer."""
    needed = {id(v): v for function in functions for v in function.variables}
    for table in tables:
        for variable in table.variables:
            needed.pop(id(variable), None)
    # In an order that is the same each time.
    weights = [needed.pop(id(v.value), None) for v in model.variables]
    others = sorted(needed.values(), key=lambda variable: variable.name)
    return [weight for weight in weights if weight is not None] + others


def _signatures(
    model: keras.Model, inputs: ModelInputs, frozen: Mapping[Table, StandIn]
) -> dict[str, Any]:
    def serve(**tensors: tf.Tensor) -> Tensors:
        return _predict(model, inputs.from_tensors(tensors))

    def serve_examples(examples: tf.Tensor) -> Tensors:
        return _predict(model, inputs.from_examples(examples))

    functions: dict[str, tuple[Callable[..., Tensors], dict[str, tf.TensorSpec]]] = {
        "serving_default": (serve, inputs.tensor_specs())
    }
    if not inputs.without_size:
        spec = tf.TensorSpec([None], tf.string, EXAMPLES_INPUT)
        functions["serving_examples"] = (serve_examples, {EXAMPLES_INPUT: spec})
    is_served = any(isinstance(table, ServedTable) for table in frozen.values())
    signatures = {}
    for name, (function, specs) in functions.items():
        traced = tf.function(function, autograph=False)
        with frozen_tables(frozen):
            signatures[name] = traced.get_concrete_function(**specs)
        check_ops(signatures[name], model.name, SERVED_OPS if is_served else ())
    return signatures


def _predict(model: keras.Model, inputs: Any) -> Tensors:
    return _named(model, model(inputs, training=False))


def _named(model: keras.Model, outputs: Any) -> Tensors:
    """Returns the outputs of a model by name."""
    if isinstance(outputs, dict):
        return {name: tf.convert_to_tensor(outputs[name]) for name in sorted(outputs)}
    flat = tf.nest.flatten(outputs)
    names = getattr(model, "output_names", None)
    if names is None or len(set(names)) < len(flat):
        single = len(flat) == 1
        names = ["output"] if single else [f"output_{i}" for i in range(len(flat))]
    tensors = map(tf.convert_to_tensor, flat)
    return dict(zip(names, tensors, strict=True))


def _write_examples(path: pathlib.Path, request: Tensors, predicted: Tensors) -> None:
    arrays = {f"inputs/{name}": _array(tensor) for name, tensor in request.items()}
    arrays |= {f"outputs/{name}": _array(each) for name, each in predicted.items()}
    path.parent.mkdir(exist_ok=True)
    with path.open("wb") as file:
        np.savez(file, **arrays)


def _array(tensor: tf.Tensor) -> np.ndarray[Any, Any]:
    array: np.ndarray[Any, Any] = tensor.numpy()
    # Of fixed width, since NumPy saves objects as code to be run.
    return array.astype(np.bytes_) if tensor.dtype == tf.string else array

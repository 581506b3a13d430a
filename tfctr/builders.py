"""Builds what a `TrainConfig` names: click log, model and optimizers."""

import math
from collections.abc import Callable
from typing import Any

import keras

from keras_layers import (
    BloomAdmission,
    CountAdmission,
    Expiry,
    ProbabilityAdmission,
    Storage,
    TieredStorage,
)
from keras_layers.storage.byte_size import parse_bytes
from tfctr import distributed
from tfctr.config import TablesConfig, TrainConfig
from tfctr.data import (
    Avazu,
    ClickLog,
    Criteo,
    MovieLens,
    NegativeSampling,
    ParquetLog,
    RandomSplit,
    SyntheticClickLog,
    TFRecordLog,
    TimeColumn,
    TimedLog,
)
from tfctr.data.split import TestSplit
from tfctr.models import (
    DCN,
    DLRM,
    DCNv2,
    DeepFM,
    DynamicTables,
    FeatureVectors,
    StaticTables,
    WideDeep,
)
from tfctr.optimizers import (
    CowClip,
    KStepAdam,
    LinearWarmup,
    RowwiseAdagrad,
    RowwiseAdam,
)

_OPTIMIZERS = {
    "sgd": keras.optimizers.SGD,
    "adagrad": keras.optimizers.Adagrad,
    "rowwise_adagrad": RowwiseAdagrad,
    "adam": keras.optimizers.Adam,
    "rowwise_adam": RowwiseAdam,
    "adamw": keras.optimizers.AdamW,
    "ftrl": keras.optimizers.Ftrl,
}
# Each of `config.NETWORKS`, and what it takes beside what all of them take.
_NETWORKS: dict[str, tuple[Callable[..., keras.Model], tuple[str, ...]]] = {
    "wide_deep": (WideDeep, ()),
    "deep_fm": (DeepFM, ()),
    "dcn": (DCN, ("num_cross_layers",)),
    "dcn_v2": (DCNv2, ("num_cross_layers", "num_experts", "rank")),
    "dlrm": (DLRM, ("bottom_units",)),
}


def open_log(config: TrainConfig) -> ClickLog:
    """Returns the click log that the config names."""
    data = config.data
    if data.kind in ("criteo", "avazu", "parquet", "tfrecord"):
        return _open_files(config)
    _refuse_test_files(config, f"data.kind={data.kind!r} has a test split of its own")
    if config.features:
        raise ValueError(
            "[[features]] declare columns of files, for data.kind 'criteo', 'avazu', "
            f"'parquet' and 'tfrecord'. Received: data.kind={data.kind!r}, which has "
            "features of its own. Leave them out."
        )
    if data.kind == "movielens":
        if not data.path:
            raise ValueError(
                "'data.path' must name the directory of the MovieLens 1M files. "
                "Received: data.path=''. Say --set data.path=path/to/ml-1m."
            )
        return MovieLens(data.path, on_bad_line=data.on_bad_line)
    if data.kind == "synthetic":
        return SyntheticClickLog(
            num_examples=data.num_examples,
            fields=data.fields,
            ids_per_field=data.ids_per_field,
            num_dense=data.num_dense,
            seed=data.seed,
        )
    raise ValueError(
        "'data.kind' must be one of 'criteo', 'avazu', 'parquet', 'tfrecord', "
        f"'movielens', 'synthetic'. Received: data.kind={data.kind!r}."
    )


def open_timed_log(config: TrainConfig) -> TimedLog:
    """Returns the log in the order of time that the config names."""
    data, asked = config.data, config.progressive
    if data.kind != "parquet":
        raise ValueError(
            "run.mode='progressive' reads Parquet files that tell the time of each "
            f"row: 'data.kind' must be 'parquet'. Received: data.kind={data.kind!r}. "
            "Write your log as Parquet, with a column of the time."
        )
    _refuse_test_files(config, "run.mode='progressive' tests on each window")
    _check_path(config)
    _check_features(config)
    negatives = None
    if asked.negatives:
        negatives = NegativeSampling(
            asked.negatives, asked.pool_seconds, config.run.seed
        )
    time = TimeColumn(asked.time, asked.time_unit)
    return TimedLog(
        data.path,
        config.features,
        time,
        data.label,
        asked.item,
        negatives,
        data.on_bad_line,
    )


def _refuse_test_files(config: TrainConfig, reason: str) -> None:
    names = ("test_path", "test_share", "test_split")
    changed = {
        f"data.{name}": getattr(config.data, name)
        for name in names
        if getattr(config.data, name) != getattr(type(config.data), name)
    }
    if changed:
        received = ", ".join(f"{name}={value!r}" for name, value in changed.items())
        raise ValueError(
            "'data.test_path', 'data.test_share' and 'data.test_split' choose the test "
            f"split of files in run.mode='epochs': {reason}. Received: {received}. "
            "Leave them out."
        )


def _check_path(config: TrainConfig) -> None:
    if not config.data.path:
        raise ValueError(
            "'data.path' must name a file, or a directory of files. "
            "Received: data.path=''. Say --set data.path=path/to/files."
        )


def _check_features(config: TrainConfig) -> None:
    if not config.features:
        raise ValueError(
            f"A log of data.kind={config.data.kind!r} must be told its features. "
            "Received: none. Add an entry for each to the file: [[features]], and "
            "below it name, kind and column."
        )


def _open_files(config: TrainConfig) -> ClickLog:
    data = config.data
    _check_path(config)
    test: TestSplit = data.test_path or data.test_share
    if data.test_split == "random":
        test = RandomSplit(data.test_share)
    rest = (test, data.on_bad_line, data.shuffle_rows)
    if data.kind in ("criteo", "avazu"):
        features = config.features or None
        return (Criteo if data.kind == "criteo" else Avazu)(data.path, features, *rest)
    _check_features(config)
    log = ParquetLog if data.kind == "parquet" else TFRecordLog
    return log(data.path, config.features, data.label, *rest)


def build_model(config: TrainConfig, log: ClickLog | TimedLog) -> keras.Model:
    """Returns the model that the config names, not yet compiled."""
    model = config.model
    vectors: FeatureVectors
    if model.embedding == "dynamic":
        vectors = _dynamic_tables(config.tables)
    elif model.embedding == "static":
        _refuse_clipping(config.tables)
        if isinstance(log, TimedLog):
            raise ValueError(
                "run.mode='progressive' goes with model.embedding='dynamic': a "
                "vocabulary known in advance would tell of the future. Received: "
                "model.embedding='static'. Leave it out."
            )
        ids = [feature.name for feature in log.features if not feature.is_dense]
        vectors = StaticTables(
            {name: log.vocabulary(name) for name in ids}, _initializer(config.tables)
        )
    else:
        raise ValueError(
            "'model.embedding' must be one of 'dynamic', 'static'. "
            f"Received: model.embedding={model.embedding!r}."
        )
    network, names = _NETWORKS[model.name]
    options = {name: getattr(model, name) for name in names}
    if options.get("rank") == 0:
        options["rank"] = None
    # A name of its own, since Keras makes "dc_nv2" of the class, and numbers the next.
    return network(
        log.features,
        vectors,
        model.dim,
        model.hidden_units,
        model.dropout,
        **options,
        name=model.name,
    )


def build_optimizer(
    config: TrainConfig, log: ClickLog | TimedLog
) -> keras.optimizers.Optimizer:
    """Returns the optimizer of all weights that are not in dynamic tables."""
    run = config.run
    rate: Any = run.learning_rate
    if run.warmup_epochs:
        if isinstance(log, TimedLog):
            raise ValueError(
                "run.mode='progressive' has no epochs to warm up in. Received: "
                f"run.warmup_epochs={run.warmup_epochs}. Set it to 0."
            )
        steps = run.warmup_epochs * log.steps_per_epoch("train", run.batch_size)
        rate = LinearWarmup(rate, math.ceil(steps))
    if run.k_step:
        return KStepAdam(rate, k=run.k_step, merge=run.merge)
    return distributed.DistributedOptimizer(keras.optimizers.Adam(rate))


def _dynamic_tables(config: TablesConfig) -> DynamicTables:
    if config.ram and parse_bytes("tables.ram", config.ram) >= 2**63:
        raise ValueError(
            "'tables.ram' must be below 2**63 bytes. "
            f"Received: tables.ram={config.ram!r}. Leave it empty for no limit."
        )
    admission = _admission(config)
    storage: Storage = TieredStorage(
        ram=config.ram or None,
        ssd=config.ssd or None,
        ssd_limit=config.ssd_limit or None,
        eviction_policy=config.eviction_policy or None,
    )
    if distributed.size() > 1:
        storage = distributed.ShardedStorage(storage)
    optimizer = _table_optimizer(config)
    if config.clip_ratio or config.l2:
        ratio = config.clip_ratio or math.inf  # No clipping.
        optimizer = CowClip(
            optimizer, ratio=ratio, floor=config.clip_floor, l2=config.l2
        )
    return DynamicTables(
        optimizer,
        storage,
        _initializer(config),
        admission=admission,
        expiry=_expiry(config),
    )


def _admission(config: TablesConfig) -> Any:
    if config.admission and distributed.size() > 1:
        raise ValueError(
            "'tables.admission' goes with a single rank: the model is saved in one "
            "file, which cannot hold the counts of several. Received: "
            f"tables.admission={config.admission!r} on {distributed.size()} ranks. "
            "Leave it out, or train by a script and save with "
            "tfctr.callbacks.Checkpoint."
        )
    if config.admission == "count":
        return CountAdmission(config.admission_min_count)
    if config.admission == "bloom":
        return BloomAdmission(
            config.admission_min_count,
            config.admission_expected_keys,
            config.admission_false_positive_rate,
        )
    if config.admission == "probability":
        return ProbabilityAdmission(config.admission_probability)
    return None


def _expiry(config: TablesConfig) -> Expiry | None:
    if not config.expiry_every:
        return None
    return Expiry(
        config.expiry_every,
        config.expiry_unused_steps or None,
        config.expiry_min_norm or None,
        config.expiry_max_rows or None,
    )


def _table_optimizer(config: TablesConfig) -> Any:
    if config.optimizer not in _OPTIMIZERS:
        known = ", ".join(f"'{name}'" for name in _OPTIMIZERS)
        raise ValueError(
            f"'tables.optimizer' must be one of {known}. "
            f"Received: tables.optimizer={config.optimizer!r}."
        )
    return _OPTIMIZERS[config.optimizer](learning_rate=config.learning_rate)


def _refuse_clipping(config: TablesConfig) -> None:
    """Static tables are moved by the optimizer of the dense weights."""
    if config.clip_ratio or config.l2:
        raise ValueError(
            "'tables.clip_ratio' and 'tables.l2' go with model.embedding='dynamic'. "
            f"Received: tables.clip_ratio={config.clip_ratio}, tables.l2={config.l2} "
            "and model.embedding='static'. Set both to 0, or compile a model of your "
            "own with tfctr.optimizers.CowClip."
        )


def _initializer(config: TablesConfig) -> Any:
    if not config.stddev:
        return "uniform"
    return keras.initializers.RandomNormal(stddev=config.stddev)

"""The sections of a configuration, and what their entries may be."""

import dataclasses
import math

from tfctr.config.checks import require, require_rate

NETWORKS = ("wide_deep", "deep_fm", "dcn", "dcn_v2", "dlrm")
MODES = ("epochs", "progressive")


@dataclasses.dataclass(frozen=True)
class DataConfig:
    """Where the examples come from.

    Args:
        kind: String. `"criteo"`, `"avazu"`, `"parquet"`, `"tfrecord"`, `"movielens"` or
            `"synthetic"`.
        path: String. Of the files: a file, or a directory of such files; of MovieLens
            the directory.
        test_path: String. Of the files that make the test split; empty: the last part
            of the examples makes it.
        test_share: Float. How large that part is.
        test_split: String. `"last"`, or `"random"`: of Criteo, Avazu, Parquet and
            TFRecord files, chance decides which examples make it; see `RandomSplit`.
        label: String. Column of the labels in Parquet and TFRecord files.
        shuffle_rows: Integer. Examples that are shuffled together; see `Criteo`.
        on_bad_line: String. `"raise"` or `"skip"`.
        num_examples: Integer. Of the synthetic log.
        fields: Integer. Id columns of the synthetic log.
        ids_per_field: Integer. Distinct ids of each column.
        num_dense: Integer. Dense columns of the synthetic log.
        seed: Integer. Of the synthetic log.
    """

    kind: str = "synthetic"
    path: str = ""
    test_path: str = ""
    test_share: float = 0.1
    test_split: str = "last"
    label: str = "label"
    shuffle_rows: int = 262_144
    on_bad_line: str = "raise"
    num_examples: int = 1_000_000
    fields: int = 8
    ids_per_field: int = 20_000
    num_dense: int = 0
    seed: int = 1

    def __post_init__(self) -> None:
        is_good = self.test_split in ("last", "random")
        require(is_good, "data.test_split", "'last' or 'random'", self.test_split)
        is_good = 0.0 <= self.test_share < 1.0
        require(is_good, "data.test_share", "0 or more and below 1", self.test_share)
        is_good = self.test_split == "last" or not self.test_path
        expected = "empty where data.test_split is 'random'"
        require(is_good, "data.test_path", expected, self.test_path)


@dataclasses.dataclass(frozen=True)
class ModelConfig:
    """What is trained.

    Args:
        name: String. `"wide_deep"`, `"deep_fm"`, `"dcn"`, `"dcn_v2"` or `"dlrm"`.
        embedding: String. `"dynamic"`, tables that grow with the ids, or `"static"`,
            `keras.layers.Embedding` over vocabularies, as a baseline.
        dim: Integer. Width of the vectors.
        hidden_units: List of integers. Widths of the layers of the MLP.
        dropout: Float. Share of hidden units that training drops.
        num_cross_layers: Integer. Of `"dcn"` and `"dcn_v2"`.
        num_experts: Integer. Of each cross layer of `"dcn_v2"`.
        rank: Integer. Inner width of the experts; 0: full matrices, and no experts.
        bottom_units: List of integers. Widths of the layers of the MLP that `"dlrm"`
            has for dense features, before one of width `dim`.
    """

    name: str = "deep_fm"
    embedding: str = "dynamic"
    dim: int = 16
    hidden_units: tuple[int, ...] = (128, 128)
    dropout: float = 0.0
    num_cross_layers: int = 3
    num_experts: int = 4
    rank: int = 32
    bottom_units: tuple[int, ...] = (512, 256, 64)

    def __post_init__(self) -> None:
        known = ", ".join(map(repr, NETWORKS))
        require(self.name in NETWORKS, "model.name", f"one of {known}", self.name)
        for name in ("hidden_units", "bottom_units"):
            units = list(getattr(self, name))
            is_good = all(width >= 1 for width in units)
            require(is_good, f"model.{name}", "a list of positive integers", units)
        is_good = 0.0 <= self.dropout < 1.0
        require(is_good, "model.dropout", "0 or more and below 1", self.dropout)
        for name in ("num_cross_layers", "num_experts"):
            value = getattr(self, name)
            require(value >= 1, f"model.{name}", "a positive integer", value)
        require(self.rank >= 0, "model.rank", "0 or more", self.rank)


@dataclasses.dataclass(frozen=True)
class TablesConfig:
    """The dynamic tables.

    Args:
        optimizer: String. `"sgd"`, `"adagrad"`, `"rowwise_adagrad"`, `"adam"`,
            `"rowwise_adam"`, `"adamw"` or `"ftrl"`.
        learning_rate: Float.
        ram: String. Budget of rows in memory such as `"4GB"`; empty for no limit.
        ssd: String. Directory for rows that have no place in memory; empty for none.
        ssd_limit: String. Bytes of it that each table may use, such as `"40GB"`; empty
            for no limit.
        eviction_policy: String. `"none"`, `"clock"`, `"lru"` or `"lfu"`; empty
            chooses, see `TieredStorage`.
        clip_ratio: Float. Gradients of rows are clipped by `CowClip` with this ratio;
            0: they are not.
        clip_floor: Float. The floor of `CowClip`.
        l2: Float. Strength of L2 on the rows of a batch; see `CowClip`.
        stddev: Float. Standard deviation of the normal law from which vectors start;
            0: Keras' uniform one.
        admission: String. Which ids get a row: `"count"`, `"bloom"` or
            `"probability"`, see `CountAdmission`, `BloomAdmission` and
            `ProbabilityAdmission`; empty: all.
        admission_min_count: Integer. How often an id was seen that gets a row.
        admission_expected_keys: Integer. Distinct ids that `"bloom"` is to count.
        admission_false_positive_rate: Float. Of `"bloom"`.
        admission_probability: Float. Of `"probability"`.
        expiry_every: Integer. How many steps lie between two looks for rows to remove;
            0: none is removed. See `Expiry`.
        expiry_unused_steps: Integer. Rows leave that were not updated for more steps;
            0: no row leaves for that.
        expiry_min_norm: Float. Rows leave whose norm is below; 0: no row leaves for
            that.
        expiry_max_rows: Integer. How many rows each table keeps; 0: no row leaves for
            that.
    """

    optimizer: str = "adam"
    learning_rate: float = 0.001
    ram: str = ""
    ssd: str = ""
    ssd_limit: str = ""
    eviction_policy: str = ""
    clip_ratio: float = 0.0
    clip_floor: float = 1e-5
    l2: float = 0.0
    stddev: float = 0.0
    admission: str = ""
    admission_min_count: int = 2
    admission_expected_keys: int = 10_000_000
    admission_false_positive_rate: float = 0.01
    admission_probability: float = 0.1
    expiry_every: int = 0
    expiry_unused_steps: int = 0
    expiry_min_norm: float = 0.0
    expiry_max_rows: int = 0

    def __post_init__(self) -> None:
        for name in (
            *("learning_rate", "clip_ratio", "clip_floor", "l2", "stddev"),
            "expiry_min_norm",
        ):
            require_rate(f"tables.{name}", getattr(self, name))
        known = ("", "count", "bloom", "probability")
        is_good = self.admission in known
        expected = f"one of {', '.join(map(repr, known[1:]))}, or empty"
        require(is_good, "tables.admission", expected, self.admission)
        for name in ("expiry_every", "expiry_unused_steps", "expiry_max_rows"):
            value = getattr(self, name)
            require(value >= 0, f"tables.{name}", "0 or more", value)
        which = (self.expiry_unused_steps, self.expiry_min_norm, self.expiry_max_rows)
        if bool(self.expiry_every) != any(which):
            raise ValueError(
                "'tables.expiry_every' goes with 'tables.expiry_unused_steps', "
                "'tables.expiry_min_norm' or 'tables.expiry_max_rows': when rows are "
                f"looked at, and which leave. Received: expiry_every="
                f"{self.expiry_every}, expiry_unused_steps={which[0]}, "
                f"expiry_min_norm={which[1]}, expiry_max_rows={which[2]}. Set both, or "
                "neither."
            )


@dataclasses.dataclass(frozen=True)
class RunConfig:
    """How it is trained.

    Args:
        mode: String. `"epochs"`: train on one split, several times over, and test on
            the other. `"progressive"`: go once through a log in the order of time, and
            test on each window before training on it; see `ProgressiveConfig`.
        epochs: Integer. Of the mode `"epochs"`.
        batch_size: Integer.
        learning_rate: Float. Of Adam on the dense weights.
        warmup_epochs: Float. In how many epochs the dense learning rate grows to it.
        seed: Integer. Of weights, rows, dropout and the order of the examples.
        steps_per_execution: Integer. Batches in one call of the compiled step.
        k_step: Integer. With several ranks, their dense weights are merged every so
            many steps, see `KStepAdam`; 0: their gradients are averaged at each step.
        merge: String. How `KStepAdam` merges.
        directory: String. Where the model is saved.
        report: Boolean. Whether `TrainingReport` writes there what the training does.
    """

    mode: str = "epochs"
    epochs: int = 3
    batch_size: int = 1024
    learning_rate: float = 0.001
    warmup_epochs: float = 0.0
    seed: int = 1
    steps_per_execution: int = 1
    k_step: int = 0
    merge: str = "frozen_denominator"
    directory: str = "runs/latest"
    report: bool = False

    def __post_init__(self) -> None:
        known = ", ".join(map(repr, MODES))
        require(self.mode in MODES, "run.mode", f"one of {known}", self.mode)
        for name in ("epochs", "batch_size", "steps_per_execution"):
            value = getattr(self, name)
            require(value >= 1, f"run.{name}", "a positive integer", value)
        require(self.k_step >= 0, "run.k_step", "0 or more", self.k_step)
        for name in ("learning_rate", "warmup_epochs"):
            require_rate(f"run.{name}", getattr(self, name))
        # What `keras.utils.set_random_seed` takes.
        require(0 <= self.seed < 2**32, "run.seed", "from 0 to 2**32 - 1", self.seed)
        name = self.directory
        require(name != "", "run.directory", "the name of a directory", name)


@dataclasses.dataclass(frozen=True)
class ProgressiveConfig:
    """How `run.mode = "progressive"` goes through Parquet files in the order of time.

    Args:
        time: String. The column of the time: integers since 1970, or timestamps.
        time_unit: String. `"s"`, `"ms"`, `"us"` or `"ns"`, of integers.
        window_seconds: Float. The model is tested on so much, and then trained on it.
        item: String. The column of what is clicked, by whose past clicks the model's
            predictions are judged beside its labels; empty: there is none.
        negatives: Integer. Non-clicks that are drawn for each row, when all rows are
            clicks, see `NegativeSampling`; 0: the files hold them, and labels.
        pool_seconds: Float. From the clicks of how long they are drawn.
        recent_seconds: Float. How far the baseline of recent clicks looks back.
        checkpoint_every: Integer. Windows between two checkpoints, in the folder
            `checkpoints` of `run.directory`, from which the same command goes on with
            a run that stopped, or that ended before the log had grown; 0: there are
            none. Give it whole windows only: rows added to the last window that was
            trained are refused.
    """

    time: str = ""
    time_unit: str = "s"
    window_seconds: float = 3600.0
    item: str = ""
    negatives: int = 0
    pool_seconds: float = 86_400.0
    recent_seconds: float = 3600.0
    checkpoint_every: int = 0

    def __post_init__(self) -> None:
        for name in ("window_seconds", "pool_seconds", "recent_seconds"):
            value = getattr(self, name)
            is_good = math.isfinite(value) and value >= 1e-9
            require(is_good, f"progressive.{name}", "a positive number", value)
        for name in ("negatives", "checkpoint_every"):
            value = getattr(self, name)
            require(value >= 0, f"progressive.{name}", "0 or more", value)

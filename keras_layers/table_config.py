"""`TableConfig` and `FeatureConfig`: what a table is, and who looks into it."""

import dataclasses
import math
from typing import Any

import keras

from keras_layers.admission import Admission
from keras_layers.expiry import Expiry
from keras_layers.number_checks import is_integer, to_python_numbers
from keras_layers.sparse_conversion import to_row_initializer, to_sparse_optimizer
from tfctr_ops import RowInitializer, SparseOptimizer

COMBINERS = ("sum", "mean", "sqrtn")


@dataclasses.dataclass(frozen=True)
class TableConfig:
    """Describes an embedding table that grows with the ids it meets.

    Args:
        name: String. For messages, reports and saved files.
        dim: Integer. Width of a row.
        optimizer: Moves the rows. A Keras `SGD`, `Adagrad`, `Adam`, `AdamW` or `Ftrl`,
            or its name; a `tfctr_ops.SparseOptimizer`; or an object with a method
            `sparse_optimizer()` and, unless that of its result stands, a
            `learning_rate`: a number, a variable, or a function of the number of
            updates. The learning rate is read at each step; a schedule sees the number
            of updates of the table.
        initializer: From what a row starts. A Keras `RandomUniform`, `RandomNormal`,
            `TruncatedNormal`, `Zeros`, `Ones` or `Constant`, its name, or a
            `tfctr_ops.RowInitializer`. A seed given to a Keras initializer is not used.
        seed: Integer. With feature and id it determines the first weights of a row.
            `None` draws one that follows from `keras.utils.set_random_seed`.
        default_row: Tuple of `dim` floats. What an id reads outside training that was
            never trained. `None` means zeros.
        bad_gradients: String. What a step with a gradient that is NaN, infinite or
            beyond 1e12 does: `"raise"`, or `"skip"` and be counted.
        admission: `CountAdmission`, `BloomAdmission` or `ProbabilityAdmission`. Which
            ids get a row, of those that a training call meets without one. The others
            read the default row, and their gradients are dropped. Each call decides
            anew, also within a step. What it counts is kept by checkpoints and Keras'
            saving; a table with another kind of admission, or another size of filter,
            starts to count anew, but a filter takes over exact counts. `None` admits
            every id.
        expiry: `Expiry`. Which rows are removed in the course of training. `None`:
            none.

    Raises:
        TypeError: If there is no fused update for this kind of optimizer, or
            `admission` or `expiry` are of another type.
        ValueError: If a value is out of range, or the optimizer asks for what the fused
            update does not do.

    Example:

    >>> TableConfig("ads", dim=16, optimizer=keras.optimizers.Adagrad(0.01)).dim
    16
    """

    name: str
    dim: int
    optimizer: Any
    initializer: Any = "uniform"
    seed: int | None = None
    default_row: tuple[float, ...] | None = None
    bad_gradients: str = "raise"
    admission: Admission | None = None
    expiry: Expiry | None = None

    def __post_init__(self) -> None:
        check_name("name", self.name)
        if not is_integer(self.dim) or self.dim < 1:
            raise ValueError(
                f"`dim` must be a positive integer. Received: dim={self.dim!r}."
            )
        if self.seed is not None and not is_integer(self.seed):
            raise ValueError(
                f"`seed` must be an integer, or None. Received: seed={self.seed!r}."
            )
        if self.bad_gradients not in ("raise", "skip"):
            raise ValueError(
                "`bad_gradients` must be one of 'raise', 'skip'. "
                f"Received: bad_gradients={self.bad_gradients!r}."
            )
        if self.admission is not None and not isinstance(self.admission, Admission):
            raise TypeError(
                "`admission` must be a CountAdmission, a BloomAdmission, a "
                f"ProbabilityAdmission or None. Received: admission={self.admission!r}."
            )
        if self.expiry is not None and not isinstance(self.expiry, Expiry):
            raise TypeError(
                "`expiry` must be an Expiry, or None. "
                f"Received: expiry={self.expiry!r}."
            )
        if self.default_row is not None:
            row = tuple(float(value) for value in self.default_row)
            if len(row) != self.dim or not all(map(math.isfinite, row)):
                raise ValueError(
                    f"`default_row` must hold dim={self.dim} finite numbers. "
                    f"Received: default_row={self.default_row}."
                )
            object.__setattr__(self, "default_row", row)
        if isinstance(self.optimizer, str):
            named = keras.optimizers.get(self.optimizer)
            object.__setattr__(self, "optimizer", named)
        to_sparse_optimizer(self.optimizer)
        to_row_initializer(self.initializer)
        to_python_numbers(self)

    def sparse_optimizer(self) -> SparseOptimizer:
        """Returns what an update does to a row of this table."""
        return to_sparse_optimizer(self.optimizer).for_dim(self.dim)

    @property
    def counts_samples(self) -> bool:
        """Whether an update must know in how many samples each id was."""
        return self.sparse_optimizer().clip_ratio is not None

    def row_initializer(self) -> RowInitializer:
        """Returns from what a row of this table starts."""
        return to_row_initializer(self.initializer)


@dataclasses.dataclass(frozen=True)
class FeatureConfig:
    """Describes a feature whose ids are looked up in a table.

    Args:
        table: `TableConfig`. Several features may use one table: their ids are kept
            apart unless they name one `namespace`.
        combiner: String. `"sum"`, `"mean"` or `"sqrtn"` pools the ids of a bag into one
            vector; `None` keeps one vector per id.
        padding_id: Integer of 64 bits with a sign, or string for string ids. An id that
            stands for nothing: it reads zeros, is masked, and never enters the table.
            `None` if every id counts.
        namespace: String. Features of one table and namespace share the rows of equal
            ids. `None` means the feature's own name.
        per_column: Boolean. Whether each column of ids `(batch, columns)` is a feature
            of its own, so that equal ids in different columns have different rows.

    Raises:
        TypeError: If `table` is no `TableConfig`, or `padding_id` is neither an integer
            nor a string.
        ValueError: If `combiner` is unknown or does not go with `per_column`,
            `padding_id` needs more than 64 bits, or `namespace` is empty or has a '/'.

    Example:

    >>> items = TableConfig("items", dim=8, optimizer=keras.optimizers.Adam(1e-3))
    >>> FeatureConfig(items, combiner="mean", namespace="item").combiner
    'mean'
    """

    table: TableConfig
    combiner: str | None = None
    padding_id: int | str | None = None
    namespace: str | None = None
    per_column: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.table, TableConfig):
            raise TypeError(
                f"`table` must be a TableConfig. Received: table={self.table!r}."
            )
        check_combiner(self.combiner)
        object.__setattr__(self, "padding_id", _checked_padding(self.padding_id))
        if self.namespace is not None:
            check_name("namespace", self.namespace)
        if self.per_column and (
            self.combiner is not None or self.padding_id is not None
        ):
            raise ValueError(
                "`per_column` features keep one vector per id, and every id counts. "
                f"Received: per_column=True, combiner={self.combiner!r}, "
                f"padding_id={self.padding_id!r}. Give bags and padded sequences a "
                "FeatureConfig of their own."
            )


def _checked_padding(padding_id: Any) -> int | str | None:
    if padding_id is None or isinstance(padding_id, str):
        return padding_id
    if not is_integer(padding_id):
        raise TypeError(
            "`padding_id` must be an integer, a string, or None if every id counts. "
            f"Received: padding_id={padding_id!r}."
        )
    if not -(2**63) <= padding_id < 2**63:
        raise ValueError(
            "`padding_id` must lie in [-2**63, 2**63), as ids do: a uint64 beyond is "
            f"taken for the int64 of the same bits. Received: padding_id={padding_id}."
        )
    return int(padding_id)


def check_name(argument: str, name: Any) -> None:
    """Raises `ValueError` unless `name` is fit to be a part of a longer one.

    Rows are saved under `table/namespace` and `table/namespace/column`, and equal names
    are equal rows.
    """
    if not isinstance(name, str) or not name or "/" in name:
        raise ValueError(
            f"`{argument}` must be a string, not empty and without '/'. "
            f"Received: {argument}={name!r}."
        )


def check_combiner(combiner: str | None) -> None:
    """Raises `ValueError` unless `combiner` is a known one, or `None`."""
    if combiner is not None and combiner not in COMBINERS:
        known = ", ".join(f"'{known}'" for known in COMBINERS)
        raise ValueError(
            f"`combiner` must be None or one of {known}. "
            f"Received: combiner={combiner!r}."
        )


def serialize_optimizer(optimizer: Any) -> dict[str, Any]:
    """Returns a JSON-able description of a table's optimizer."""
    if isinstance(optimizer, SparseOptimizer):
        return {"sparse_optimizer": dataclasses.asdict(optimizer)}
    description: dict[str, Any] = keras.saving.serialize_keras_object(optimizer)
    return description


def deserialize_optimizer(config: dict[str, Any]) -> Any:
    """Returns the optimizer that `serialize_optimizer` described."""
    if "sparse_optimizer" in config:
        return SparseOptimizer(**config["sparse_optimizer"])
    return keras.saving.deserialize_keras_object(config)

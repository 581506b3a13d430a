"""`Feature`: what a click log offers to a model."""

import dataclasses

DTYPES = ("int64", "string", "float32")
COMBINERS = ("mean", "sum", "sqrtn")


@dataclasses.dataclass(frozen=True)
class Feature:
    """Describes one input that a click log delivers with every example.

    int64 and string features are ids, to be embedded; float32 features are dense
    numbers, to be used as they are.

    Args:
        name: String. The key of the feature in the dict of a batch.
        dtype: String. "int64", "string" or "float32".
        is_bag: Boolean. Whether an example has any number of ids, possibly none. A
            batch then holds a ragged tensor of shape `(batch, None)`.
        width: Integer. Number of columns, each a feature of its own, delivered as
            one tensor of shape `(batch, width)`. `None` means a single column,
            delivered as a tensor of shape `(batch,)`.
        combiner: String. How a model makes one vector of a bag: "mean", "sum" or
            "sqrtn".
        table: String. Features that name one share the vectors of equal ids. `None`
            keeps the ids of this feature apart from all others.

    Raises:
        ValueError: If an argument is out of its range, or a bag is dense or wide.

    Example:

    >>> Feature("ids", "int64", width=8).shape
    (8,)
    >>> Feature("genres", "string", is_bag=True).shape
    (None,)
    """

    name: str
    dtype: str
    is_bag: bool = False
    width: int | None = None
    combiner: str = "mean"
    table: str | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise ValueError(
                "`name` must be a string of at least one character. "
                f"Received: name={self.name!r}. It is the feature's key in a batch."
            )
        if self.dtype not in DTYPES:
            raise ValueError(
                f"`dtype` of feature '{self.name}' must be one of "
                f"{', '.join(map(repr, DTYPES))}. Received: dtype={self.dtype!r}. "
                "Use 'int64' or 'string' for ids, 'float32' for dense numbers."
            )
        if self.width is not None and self.width < 1:
            raise ValueError(
                f"`width` of feature '{self.name}' must be a positive integer or None. "
                f"Received: width={self.width}. Use None for a single column."
            )
        if self.is_bag and (self.is_dense or self.width is not None):
            raise ValueError(
                f"A bag holds ids of one column, so feature '{self.name}' with "
                "is_bag=True expects dtype 'int64' or 'string' and width=None. "
                f"Received: dtype={self.dtype!r}, width={self.width}. "
                "Describe each bag by a feature of its own."
            )
        if self.combiner not in COMBINERS:
            raise ValueError(
                f"`combiner` of feature '{self.name}' must be one of "
                f"{', '.join(map(repr, COMBINERS))}. Received: "
                f"combiner={self.combiner!r}. It pools the ids of a bag."
            )
        if self.table is not None and (self.is_dense or self.width is not None):
            raise ValueError(
                f"`table` is for ids of one column, and feature '{self.name}' has "
                f"others. Received: table={self.table!r}, dtype={self.dtype!r}, "
                f"width={self.width}. Describe each column by a feature of its own."
            )

    @property
    def is_dense(self) -> bool:
        """Whether the feature is a number to be used as it is, not an id."""
        return self.dtype == "float32"

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The shape of one example: `()`, `(width,)`, or `(None,)` for a bag."""
        if self.is_bag:
            return (None,)
        return () if self.width is None else (self.width,)

"""`FeatureDeclaration`: how columns of a file become a feature of a model."""

import dataclasses

from tfctr.feature import Feature

# What a feature is delivered as.
_DTYPES = {
    "id": "int64",
    "ids": "int64",
    "string": "string",
    "strings": "string",
    "dense": "float32",
}
_TRANSFORMS = {"log": "dense", "bucketize": "id"}


@dataclasses.dataclass(frozen=True)
class FeatureDeclaration:
    """Declares a feature: which columns of the files it is made of, and how.

    Args:
        name: String. The feature's key in a batch.
        kind: String. `"id"`: an integer that stands for something; `"string"`: a text
            that does; `"ids"` and `"strings"`: a list of any length of them; `"dense"`:
            a number. An empty field is the id -1, the empty text or `missing`.
        column: String. The column of the files; empty: `name`.
        columns: List of strings. Several columns side by side, each a feature of its
            own, instead of `column`.
        combiner: String. How the vectors of a list become one: `"mean"`, `"sum"` or
            `"sqrtn"`.
        table: String. Features that name one share the vectors of equal ids; empty:
            a feature has its own.
        transform: String. `"log"` makes a number x into `log(1 + max(x, 0))`;
            `"bucketize"` makes it an id: the number of the `boundaries` that are at
            most x. Empty leaves values as they are.
        boundaries: List of numbers, in rising order.
        missing: Float. What stands for an empty dense field, after the transform.

    Raises:
        ValueError: If an argument is out of its range, or does not fit the others.

    Example:

    >>> declared = FeatureDeclaration("price", kind="dense", transform="log")
    >>> declared.feature.dtype, declared.sources
    ('float32', ('price',))
    """

    name: str = ""
    kind: str = "id"
    column: str = ""
    columns: tuple[str, ...] = ()
    combiner: str = "mean"
    table: str = ""
    transform: str = ""
    boundaries: tuple[float, ...] = ()
    missing: float = 0.0

    def __post_init__(self) -> None:
        self._require("kind", self.kind in _DTYPES, f"one of {_listed(_DTYPES)}")
        self._require(
            "column",
            not (self.column and self.columns),
            "empty where `columns` are named",
        )
        self._require(
            "columns",
            not (self.columns and self.is_list),
            f"empty for kind '{self.kind}': each list is a feature of its own",
        )
        is_known = self.transform in ("", *_TRANSFORMS)
        self._require("transform", is_known, f"one of {_listed(_TRANSFORMS)} or empty")
        if self.transform:
            kind = _TRANSFORMS[self.transform]
            fits = f"of a feature of kind '{kind}', and this is of '{self.kind}'"
            self._require("transform", self.kind == kind, fits)
        rising = all(
            low < high
            for low, high in zip(self.boundaries, self.boundaries[1:], strict=False)
        )
        self._require("boundaries", rising, "in rising order")
        self._require(
            "boundaries",
            bool(self.boundaries) == (self.transform == "bucketize"),
            "numbers with transform 'bucketize', and left out without it",
        )
        _ = self.feature  # Which checks the rest.

    @property
    def is_list(self) -> bool:
        """Whether an example has any number of values."""
        return self.kind in ("ids", "strings")

    @property
    def sources(self) -> tuple[str, ...]:
        """The columns that it is made of."""
        return self.columns or (self.column or self.name,)

    @property
    def feature(self) -> Feature:
        """What a model is told of it."""
        return Feature(
            self.name,
            _DTYPES[self.kind],
            is_bag=self.is_list,
            width=len(self.columns) or None,
            combiner=self.combiner,
            table=self.table or None,
        )

    def _require(self, field: str, is_good: bool, expected: str) -> None:
        if not is_good:
            raise ValueError(
                f"`{field}` of feature '{self.name}' must be {expected}. "
                f"Received: {field}={getattr(self, field)!r}."
            )


def _listed(names: dict[str, str]) -> str:
    return ", ".join(map(repr, names))

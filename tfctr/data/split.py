"""`RandomSplit`, and what else a reader can be told of its test split."""

import dataclasses
import os

from tfctr.data.number_checks import is_number


@dataclasses.dataclass(frozen=True)
class RandomSplit:
    """A test split of examples that are drawn at random.

    Whether an example belongs to it follows from its number in the log alone: it is the
    same split each time, and in a log that has grown.

    Args:
        share: Float. Of the examples that are for the test.

    Raises:
        ValueError: If the share is not 0 or more and below 1.

    Example:

    >>> RandomSplit(0.1)
    RandomSplit(share=0.1)
    """

    share: float

    def __post_init__(self) -> None:
        _check_share("share", self.share)
        object.__setattr__(self, "share", float(self.share))


# A share of the last examples, the path of other files, or a share of all.
TestSplit = float | str | os.PathLike[str] | RandomSplit


def split_share(test: TestSplit) -> tuple[float, str | os.PathLike[str] | None]:
    """Returns the share of the examples, or the path of files of their own.

    Raises:
        ValueError: If `test` is neither a share nor a path.
    """
    if isinstance(test, (str, os.PathLike)):
        return 0.0, test
    if isinstance(test, RandomSplit):
        return test.share, None
    _check_share("test", test)
    return float(test), None


def _check_share(name: str, share: float) -> None:
    if not is_number(share) or not 0 <= share < 1:
        or_path = ", or a path" if name == "test" else ""
        raise ValueError(
            f"`{name}` must be a number of 0 or more and below 1, the share of the "
            f"examples that are for the test{or_path}. Received: {name}={share!r}. A "
            "usual share is 0.1."
        )

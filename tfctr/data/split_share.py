"""`split_share`: which examples are for the test."""

import os


def split_share(
    test: float | str | os.PathLike[str],
) -> tuple[float, str | os.PathLike[str] | None]:
    """Returns the share of the last examples, or the path of files of their own."""
    if isinstance(test, (str, os.PathLike)):
        return 0.0, test
    if not isinstance(test, (int, float)) or not 0 <= test < 1:
        raise ValueError(
            "`test` must be a number of 0 or more and below 1, the share of the last "
            f"examples, or a path. Received: test={test!r}. A usual share is 0.1."
        )
    return float(test), None

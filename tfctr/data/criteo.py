"""`Criteo`: the display advertising logs of Criteo, Kaggle's and the terabyte."""

import os
from collections.abc import Sequence

from tfctr.data.blocked_click_log import SHUFFLE_ROWS
from tfctr.data.delimited_click_log import DelimitedClickLog, LineFormat
from tfctr.data.split import TestSplit
from tfctr.declaration import FeatureDeclaration

NUMBERS = tuple(f"I{number}" for number in range(1, 14))
CATEGORIES = tuple(f"C{number}" for number in range(1, 27))
CRITEO_LINE = LineFormat(
    "Criteo's TSV", "\t", ("label", *NUMBERS, *CATEGORIES), "l" + "n" * 13 + "h" * 26
)
CRITEO_FEATURES = (
    FeatureDeclaration("numbers", "dense", columns=NUMBERS, transform="log"),
    FeatureDeclaration("categories", "id", columns=CATEGORIES),
)


class Criteo(DelimitedClickLog):
    """Reads Criteo's logs: a label, 13 integers, and 26 categories in hexadecimal.

    Lines have 40 fields with tabs between them, as in `train.txt` of the Kaggle
    challenge and `day_0` to `day_23` of the terabyte; files may be gzip. Empty
    categories are the id -1. The files are parsed once when the log is opened, which
    finds all bad lines, and where each block begins; reading then starts anywhere,
    within gzip files too.

    The lines are in the order of time, and by default the last tenth of them is the
    test split. Some publications split at random, which is easier, and which
    `RandomSplit` does too: figures from the two are not to be compared.

    Args:
        path: String or path. A file, or a directory of files that are read in the order
            of their names.
        features: `FeatureDeclaration`s over the columns I1 to I13 and C1 to C26. `None`
            means `numbers`, the 13 integers as `log(1 + max(x, 0))`, and `categories`,
            the 26 ids.
        test: Float, string or path, or `RandomSplit`. The share of the last lines that
            makes the test split, its files, or the share of lines from anywhere.
        on_bad_line: String. "raise" stops at a line that is not like that, and at a
            gzip file that is cut off. "skip" leaves such lines out, counts them and
            logs the first.
        shuffle_rows: Integer. How many examples, of blocks from anywhere in the files,
            are shuffled together. Some multiples of them are in memory.

    Raises:
        FileNotFoundError: If there is no file.
        PermissionError: If a file may not be read.
        ValueError: If an argument is out of its range, at a bad line, or if no line is
            left.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.txt"
    >>> fields = ["1", *["5"] * 13, *["68fd1e64"] * 25, ""]
    >>> _ = path.write_text("\\t".join(fields) + "\\n")
    >>> inputs, labels = next(iter(Criteo(path).batches("train", batch_size=1)))
    >>> inputs["categories"].numpy()[0, -2:]
    array([1761418852,         -1])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        features: Sequence[FeatureDeclaration] | None = None,
        test: TestSplit = 0.1,
        on_bad_line: str = "raise",
        shuffle_rows: int = SHUFFLE_ROWS,
    ) -> None:
        declared = CRITEO_FEATURES if features is None else features
        super().__init__(CRITEO_LINE, path, declared, test, on_bad_line, shuffle_rows)

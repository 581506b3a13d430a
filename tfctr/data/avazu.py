"""`Avazu`: the click log of Kaggle's Avazu challenge."""

import os
from collections.abc import Sequence

from tfctr.data.blocked_click_log import SHUFFLE_ROWS
from tfctr.data.delimited_click_log import DelimitedClickLog, LineFormat
from tfctr.data.split import TestSplit
from tfctr.declaration import FeatureDeclaration

_KINDS = {
    "id": "-",
    "click": "l",
    "hour": "d",
    "C1": "d",
    "banner_pos": "d",
    "site_id": "h",
    "site_domain": "h",
    "site_category": "h",
    "app_id": "h",
    "app_domain": "h",
    "app_category": "h",
    "device_id": "h",
    "device_ip": "h",
    "device_model": "h",
    "device_type": "d",
    "device_conn_type": "d",
    **{f"C{number}": "d" for number in range(14, 22)},
}
AVAZU_LINE = LineFormat(
    "Avazu's CSV", ",", tuple(_KINDS), "".join(_KINDS.values()), header="id,"
)
AVAZU_COLUMNS = AVAZU_LINE.names_of("dh")
# The hour counts from the first day of the log: as an id it says nothing of later days.
AVAZU_FEATURES = (FeatureDeclaration("categories", "id", columns=AVAZU_COLUMNS[1:]),)


class Avazu(DelimitedClickLog):
    """Reads Avazu's log: an id, a label, the hour, and 21 categories.

    Lines are as in `train.csv` of the challenge, with or without the line that names
    the columns; files may be gzip. Categories are integers, in hexadecimal or decimal;
    empty ones are the id -1, which the log itself writes for what is not known. The
    lines are in the order of time. See `Criteo` for the rest.

    Args:
        path: String or path. A file, or a directory of files.
        features: `FeatureDeclaration`s over the columns `hour` (YYMMDDHH), `C1`,
            `banner_pos`, `site_id` and so on. `None` means `categories`, all of them
            but the hour.
        test: Float, string or path, or `RandomSplit`. The share of the last lines that
            makes the test split, its files, or the share of lines from anywhere.
        on_bad_line: String. "raise" or "skip".
        shuffle_rows: Integer. How many examples are shuffled together.

    Raises:
        FileNotFoundError: If there is no file.
        PermissionError: If a file may not be read.
        ValueError: If an argument is out of its range, at a bad line, or if no line is
            left.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp()) / "train.csv"
    >>> line = ["7", "0", "14102100", "1005", "0", *["1fbe01fe"] * 9, *["1"] * 10]
    >>> _ = path.write_text(",".join(line) + "\\n")
    >>> inputs, labels = next(iter(Avazu(path).batches("train", batch_size=1)))
    >>> inputs["categories"].shape
    TensorShape([1, 21])
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        features: Sequence[FeatureDeclaration] | None = None,
        test: TestSplit = 0.1,
        on_bad_line: str = "raise",
        shuffle_rows: int = SHUFFLE_ROWS,
    ) -> None:
        declared = AVAZU_FEATURES if features is None else features
        super().__init__(AVAZU_LINE, path, declared, test, on_bad_line, shuffle_rows)

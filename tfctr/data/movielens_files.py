"""Parsers of the three files of MovieLens 1M, into columns."""

import dataclasses
import pathlib
import re
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tfctr.data.bad_lines import BadLines

Int64s = npt.NDArray[np.int64]
Strings = npt.NDArray[np.str_]

# At most 18 digits, so that every number fits an int64.
_RATING_LINES = re.compile(rb"(?:\d{1,18}+::\d{1,18}+::[1-5]::\d{1,18}+\r?\n)*+")
_RATING = "`UserID::MovieID::Rating::Timestamp` in integers, with a rating from 1 to 5"
_USER_LINE = re.compile(r"([0-9]{1,18})::([FM])::([0-9]{1,18})::([0-9]{1,18})::(.+)")
_USER = "`UserID::Gender::Age::Occupation::Zip`, with gender F or M"
_MOVIE_LINE = re.compile(r"([0-9]{1,18})::(.*)::((?:[^:|]+(?:\|[^:|]+)*)?)")
_MOVIE = "`MovieID::Title::Genre|Genre`"


@dataclasses.dataclass(frozen=True)
class Ratings:
    """`ratings.dat`: one array element per good line, in the order of the file."""

    user: Int64s
    movie: Int64s
    rating: Int64s
    timestamp: Int64s
    bad_line_numbers: Int64s

    def line_number(self, index: int) -> int:
        """Returns the line, counted from 1, that the rating at `index` came from."""
        # Bad line i pushes every rating from index `number - 1 - i` on by one line.
        shifted_from = self.bad_line_numbers - 1 - np.arange(len(self.bad_line_numbers))
        return index + 1 + int(np.searchsorted(shifted_from, index, side="right"))


@dataclasses.dataclass(frozen=True)
class Users:
    """`users.dat`: one array element per user, in the order of the file."""

    user: Int64s
    gender: Strings
    age: Int64s
    occupation: Int64s
    zip: Strings


@dataclasses.dataclass(frozen=True)
class Movies:
    """`movies.dat`: movie i has `genres[row_splits[i]:row_splits[i + 1]]`."""

    movie: Int64s
    genres: Strings
    row_splits: Int64s


def read_ratings(path: pathlib.Path, bad_lines: BadLines) -> Ratings:
    """Reads `ratings.dat`."""
    text = path.read_bytes()
    if text and not text.endswith(b"\n"):
        text += b"\n"
    good_parts, bad_line_numbers = [], []
    start, line_number = 0, 1
    while start < len(text):
        # One match spans all good lines up to the next bad one.
        end = _RATING_LINES.match(text, start).end()  # type: ignore[union-attr]
        good_parts.append(text[start:end])
        start = end
        if start < len(text):
            line_number += good_parts[-1].count(b"\n")
            end = text.index(b"\n", start)
            line = text[start:end].decode("utf-8", "backslashreplace")
            bad_lines.add(path, line_number, line.removesuffix("\r"), _RATING)
            bad_line_numbers.append(line_number)
            start, line_number = end + 1, line_number + 1
    numbers = _numbers(b"".join(good_parts)).reshape(-1, 4)
    user, movie, rating, timestamp = numbers.T
    numbers_of_bad = np.array(bad_line_numbers, np.int64)
    return Ratings(user, movie, rating, timestamp, numbers_of_bad)


def read_users(path: pathlib.Path, bad_lines: BadLines) -> Users:
    """Reads `users.dat`."""
    rows = [match.groups() for match in _lines(path, _USER_LINE, _USER, bad_lines)]
    user, gender, age, occupation, zip_code = (
        zip(*rows, strict=True) if rows else ((),) * 5
    )
    return Users(
        np.array(user, np.int64),
        np.array(gender, np.str_),
        np.array(age, np.int64),
        np.array(occupation, np.int64),
        np.array(zip_code, np.str_),
    )


def read_movies(path: pathlib.Path, bad_lines: BadLines) -> Movies:
    """Reads `movies.dat`. Titles are checked, not kept."""
    movies: list[int] = []
    genres: list[str] = []
    row_splits = [0]
    for match in _lines(path, _MOVIE_LINE, _MOVIE, bad_lines):
        movies.append(int(match[1]))
        genres.extend(match[3].split("|") if match[3] else [])
        row_splits.append(len(genres))
    return Movies(
        np.array(movies, np.int64),
        np.array(genres, np.str_),
        np.array(row_splits, np.int64),
    )


def _numbers(good_lines: bytes) -> Int64s:
    if not good_lines:
        return np.zeros(0, np.int64)
    return np.fromstring(good_lines.replace(b"::", b" "), np.int64, sep=" ")


def _lines(
    path: pathlib.Path, pattern: re.Pattern[str], expected: str, bad_lines: BadLines
) -> Iterator[re.Match[str]]:
    """Yields the match of every good line whose first group, an id, is new."""
    line_of_id: dict[int, int] = {}
    # Not `splitlines`, which would also split at Latin-1's control characters.
    lines = _decode(path.read_bytes()).removesuffix("\n").split("\n")
    for number, line in enumerate(lines, start=1):
        line = line.removesuffix("\r")
        match = pattern.fullmatch(line)
        if match is None:
            bad_lines.add(path, number, line, expected)
            continue
        first_line = line_of_id.setdefault(int(match[1]), number)
        if first_line == number:
            yield match
        else:
            once = f"an id of its own; line {first_line} has this one already"
            bad_lines.add(path, number, line, once)


def _decode(text: bytes) -> str:
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError:  # The official archive is Latin-1.
        return text.decode("latin-1")

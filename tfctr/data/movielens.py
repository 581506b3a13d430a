"""`MovieLens`: the MovieLens 1M data set as a click log."""

import os
import pathlib
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tfctr.data.bad_lines import BadLine, BadLines
from tfctr.data.click_log import check_split
from tfctr.data.epoch_order import SPLITS
from tfctr.data.hashing import hash64
from tfctr.data.indexed_click_log import IndexedClickLog
from tfctr.data.movielens_files import (
    Int64s,
    Ratings,
    read_movies,
    read_ratings,
    read_users,
)
from tfctr.feature import Feature

if TYPE_CHECKING:
    import tensorflow as tf

    from tfctr.data.indexed_click_log import Batch

FILES = ("ratings.dat", "users.dat", "movies.dat")


class MovieLens(IndexedClickLog):
    """Reads MovieLens 1M: will this user rate this movie `threshold` or better?

    The directory holds the files of the official archive, in UTF-8 or Latin-1:
    `ratings.dat` (`UserID::MovieID::Rating::Timestamp`), `users.dat`
    (`UserID::Gender::Age::Occupation::Zip`), and `movies.dat`
    (`MovieID::Title::Genre|Genre`). Every rating is an example. About one in ten is
    in the test split, by `is_test_rating`; within a split, the log's order is that of
    `ratings.dat`.

    Args:
        path: String or path. The directory of the three files.
        threshold: Integer from 2 to 5. The lowest rating with label 1.
        on_bad_line: String. "raise" stops at a malformed line, at a rating of an
            unknown user or movie, and at a second definition of a user or movie.
            "skip" leaves such lines out, counts them and logs the first.

    Raises:
        FileNotFoundError: If the directory or one of the files is missing.
        ValueError: If an argument is out of its range, at a bad line, or if no rating
            is left.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (path / "ratings.dat").write_text("1::48::5::978824351\\n")
    >>> _ = (path / "users.dat").write_text("1::F::1::10::48067\\n")
    >>> _ = (path / "movies.dat").write_text("48::Pocahontas::Animation|Romance\\n")
    >>> log = MovieLens(path)
    >>> inputs, labels = next(iter(log.batches("train", batch_size=1)))
    >>> inputs["genres"]
    <tf.RaggedTensor [[b'Animation', b'Romance']]>
    >>> labels.numpy()
    array([1.], dtype=float32)
    """

    features = (
        Feature("user", "int64"),
        Feature("movie", "int64"),
        Feature("age", "int64"),
        Feature("occupation", "int64"),
        Feature("gender", "string"),
        Feature("zip", "string"),
        Feature("genres", "string", is_bag=True),
    )

    def __init__(
        self,
        path: str | os.PathLike[str],
        threshold: int = 4,
        on_bad_line: str = "raise",
    ) -> None:
        if threshold not in (2, 3, 4, 5):
            raise ValueError(
                "`threshold` must be an integer from 2 to 5. "
                f"Received: threshold={threshold!r}. "
                "Ratings go from 1 to 5, so any other value makes all labels equal."
            )
        self.threshold = threshold
        self._bad_lines = BadLines(on_bad_line)
        directory = find_directory(path)
        self._users = read_users(directory / "users.dat", self._bad_lines)
        self._movies = read_movies(directory / "movies.dat", self._bad_lines)
        ratings = read_ratings(directory / "ratings.dat", self._bad_lines)
        self._index(directory / "ratings.dat", ratings)
        self._bad_lines.report()

    @property
    def bad_lines(self) -> int:
        """Number of lines left out."""
        return self._bad_lines.count

    @property
    def first_bad_line(self) -> BadLine | None:
        """The first line left out, if any: of users.dat, movies.dat, ratings.dat."""
        return self._bad_lines.first

    def num_examples(self, split: str) -> int:
        check_split(split)
        return len(self._labels[split])

    def vocabulary(self, feature_name: str) -> npt.NDArray[Any]:
        self.feature(feature_name)
        values: npt.NDArray[Any]
        if feature_name == "movie":
            values = self._movies.movie[self._is_rated_movie()]
        elif feature_name == "genres":
            num_genres = np.diff(self._movies.row_splits)
            is_rated = np.repeat(self._is_rated_movie(), num_genres)
            values = self._movies.genres[is_rated]
        else:
            is_active = np.zeros(len(self._users.user), bool)
            for user_index in self._user_index.values():
                is_active[user_index] = True
            values = getattr(self._users, feature_name)[is_active]
        values = np.unique(values)
        return values

    def _is_rated_movie(self) -> npt.NDArray[np.bool_]:
        is_rated = np.zeros(len(self._movies.movie), bool)
        for movie_index in self._movie_index.values():
            is_rated[movie_index] = True
        return is_rated

    def _index(self, path: pathlib.Path, ratings: Ratings) -> None:
        """Splits the ratings, with rows of `users` and `movies` instead of ids."""
        user_index = _index_in(self._users.user, ratings.user)
        movie_index = _index_in(self._movies.movie, ratings.movie)
        is_good = (user_index >= 0) & (movie_index >= 0)
        for index in np.flatnonzero(~is_good):
            fields = (ratings.user, ratings.movie, ratings.rating, ratings.timestamp)
            self._bad_lines.add(
                path,
                ratings.line_number(index),
                "::".join(str(field[index]) for field in fields),
                "a user that users.dat defines"
                if user_index[index] < 0
                else "a movie that movies.dat defines",
            )
        if not is_good.any():
            raise self._bad_lines.none_good(path, "rating")
        is_test = is_test_rating(ratings.user, ratings.movie)
        labels = (ratings.rating >= self.threshold).astype(np.float32)
        self._user_index: dict[str, npt.NDArray[np.int32]] = {}
        self._movie_index: dict[str, npt.NDArray[np.int32]] = {}
        self._labels: dict[str, npt.NDArray[np.float32]] = {}
        for split in SPLITS:
            rows = np.flatnonzero(is_good & (is_test == (split == "test")))
            self._user_index[split] = user_index[rows]
            self._movie_index[split] = movie_index[rows]
            self._labels[split] = labels[rows]

    def _gatherer(self, split: str) -> "Callable[[tf.Tensor], Batch]":
        import tensorflow as tf

        # An example is two row numbers and a label; everything else is gathered
        # from tables of one row per user and per movie.
        with tf.device("CPU:0"):
            user_index = tf.constant(self._user_index[split])
            movie_index = tf.constant(self._movie_index[split])
            labels = tf.constant(self._labels[split])
            users, movies = self._users, self._movies
            user_numbers = tf.constant(
                np.stack([users.user, users.age, users.occupation], axis=1)
            )
            user_strings = tf.constant(np.stack([users.gender, users.zip], axis=1))
            movie_ids = tf.constant(movies.movie)
            genres = tf.RaggedTensor.from_row_splits(
                tf.constant(movies.genres, tf.string), tf.constant(movies.row_splits)
            )

        def gather(indices: "tf.Tensor") -> "Batch":
            user = tf.gather(user_index, indices)
            movie = tf.gather(movie_index, indices)
            user_ids, age, occupation = tf.unstack(
                tf.gather(user_numbers, user), axis=1
            )
            gender, zip_code = tf.unstack(tf.gather(user_strings, user), axis=1)
            inputs = {
                "user": user_ids,
                "movie": tf.gather(movie_ids, movie),
                "age": age,
                "occupation": occupation,
                "gender": gender,
                "zip": zip_code,
                "genres": tf.gather(genres, movie),
            }
            return inputs, tf.gather(labels, indices)

        return gather


def is_test_rating(user: Int64s, movie: Int64s) -> npt.NDArray[np.bool_]:
    """Returns which ratings belong to the test split: about one in ten.

    A pure function of the two ids: `hash64(user, movie) < 2**64 // 10`. A rating
    stays in its split whatever the rest of the file holds.
    """
    return hash64(user, movie) < np.uint64(2**64 // 10)


def _index_in(ids: Int64s, wanted: Int64s) -> npt.NDArray[np.int32]:
    """Returns the index of each wanted id in `ids`, or -1."""
    if len(ids) == 0:
        return np.full(len(wanted), -1, np.int32)
    order = np.argsort(ids)
    nearest = order[np.searchsorted(ids, wanted, sorter=order).clip(max=len(ids) - 1)]
    return np.where(ids[nearest] == wanted, nearest, -1).astype(np.int32)


def find_directory(path: str | os.PathLike[str]) -> pathlib.Path:
    """Returns the directory of the three files.

    Raises:
        FileNotFoundError: If one of them is missing.
    """
    directory = pathlib.Path(path)
    missing = [name for name in FILES if not (directory / name).is_file()]
    if not missing:
        return directory
    expected = f"`path` must be a directory with the files {', '.join(FILES)}."
    if not directory.exists():
        found = "which does not exist"
    elif not directory.is_dir():
        found = "which is a file"
    else:
        found = f"which has no {', '.join(missing)}"
    nearby = [directory.parent, *(directory.glob("*/") if directory.is_dir() else ())]
    complete = [
        place for place in nearby if all((place / name).is_file() for name in FILES)
    ]
    raise FileNotFoundError(
        f"{expected} Received: path='{directory}', {found}. "
        + (
            f"They are in '{complete[0]}': pass that."
            if complete
            else "Download MovieLens 1M (ml-1m.zip) from grouplens.org and unpack it."
        )
    )

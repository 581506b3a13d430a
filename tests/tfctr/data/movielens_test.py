"""`MovieLens`: on a directory written by hand, and on the real data set."""

import logging
import os
import pathlib
import re
import shutil

import numpy as np
import pytest
import tensorflow as tf

from tfctr.data import MovieLens
from tfctr.data.movielens import is_test_rating

ROOT = pathlib.Path(__file__).resolve().parents[3]
DATA = pathlib.Path(os.environ.get("TFCTR_DATA", ROOT.parent / "shared" / "data"))


@pytest.fixture
def real_path():
    path = DATA / "ml-1m"
    if not path.is_dir():
        pytest.skip(f"MovieLens 1M is not at {path}; set TFCTR_DATA to its parent.")
    return path


def append(path, text):
    path.write_bytes(path.read_bytes() + text.encode())


def columns(log, split):
    """Returns every column of a split, labels included, in the log's order."""
    batch, labels = next(iter(log.batches(split, log.num_examples(split))))
    lists = {
        name: value.to_list() if isinstance(value, tf.RaggedTensor) else value.numpy()
        for name, value in batch.items()
    }
    return {**lists, "label": labels.numpy()}


def test_examples_equal_the_files(movielens_path):
    log = MovieLens(movielens_path, threshold=3)

    def table(name):
        lines = (movielens_path / name).read_text().splitlines()
        return [line.split("::") for line in lines]

    users = {user: rest for user, *rest in table("users.dat")}
    genres = {movie: listed for movie, _, listed in table("movies.dat")}
    expected = {"train": [], "test": []}
    for user, movie, rating, _ in table("ratings.dat"):
        gender, age, occupation, zip_code = users[user]
        is_test = is_test_rating(np.array([int(user)]), np.array([int(movie)]))[0]
        expected["test" if is_test else "train"].append(
            {
                "user": int(user),
                "movie": int(movie),
                "age": int(age),
                "occupation": int(occupation),
                "gender": gender.encode(),
                "zip": zip_code.encode(),
                "genres": [g.encode() for g in genres[movie].split("|") if g],
                "label": float(int(rating) >= 3),
            }
        )
    for split, rows in expected.items():
        found = columns(log, split)
        assert log.num_examples(split) == len(rows) > 0
        assert found.keys() == rows[0].keys()
        for name, values in found.items():
            assert list(values) == [row[name] for row in rows]


def test_split_is_frozen():
    users, movies = np.meshgrid(np.arange(1, 6), np.arange(1, 11), indexing="ij")
    in_test = np.argwhere(is_test_rating(users, movies)) + 1
    assert in_test.tolist() == [[2, 9], [5, 4], [5, 10]]


def test_split_does_not_depend_on_the_rest_of_the_file(movielens_path):
    before = columns(MovieLens(movielens_path), "test")
    ratings = movielens_path / "ratings.dat"
    lines = ratings.read_text().splitlines(keepends=True)
    ratings.write_text("".join(lines[100:]))
    after = columns(MovieLens(movielens_path), "test")
    assert len(after["user"]) < len(before["user"])
    for name in after:
        assert list(after[name]) == list(before[name][-len(after[name]) :])


def test_vocabulary_leaves_out_who_never_occurs(movielens_path):
    append(movielens_path / "users.dat", "99::F::77::20::99999\n")
    append(movielens_path / "movies.dat", "5::Unseen::Western\n")
    log = MovieLens(movielens_path)
    assert log.vocabulary("user").tolist() == list(range(1, 31))
    assert log.vocabulary("movie").tolist() == list(range(10, 121, 10))
    assert log.vocabulary("genres").tolist() == ["Action", "Comedy", "Drama"]
    assert log.vocabulary("gender").tolist() == ["F", "M"]
    assert 77 not in log.vocabulary("age")
    assert "99999" not in log.vocabulary("zip")


def test_films_without_any_genre_are_read(movielens_path):
    text = "".join(f"{movie}::Film::\n" for movie in range(10, 121, 10))
    (movielens_path / "movies.dat").write_text(text)
    log = MovieLens(movielens_path)
    inputs, _ = next(iter(log.batches("train", 4)))
    assert inputs["genres"].to_list() == [[]] * 4
    assert inputs["genres"].dtype == tf.string
    assert log.vocabulary("genres").tolist() == []


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("31::10::5::0", "a user that users.dat defines"),
        ("30::11::5::0", "a movie that movies.dat defines"),
        ("999::11::5::0", "a user that users.dat defines"),
    ],
)
def test_rating_of_somebody_unknown_is_a_bad_line(movielens_path, line, expected):
    whole = MovieLens(movielens_path)
    ratings = movielens_path / "ratings.dat"
    append(ratings, f"{line}\n")
    message = f"{ratings}, line 361, must hold {expected}. Received: '{line}'."
    with pytest.raises(ValueError, match=re.escape(message)):
        MovieLens(movielens_path)
    log = MovieLens(movielens_path, on_bad_line="skip")
    assert log.bad_lines == 1 and str(log.first_bad_line) == message
    for split in ("train", "test"):
        assert log.num_examples(split) == whole.num_examples(split)


def test_bad_lines_of_all_files_are_counted_and_reported(movielens_path, caplog):
    append(movielens_path / "users.dat", "bad\n")
    append(movielens_path / "movies.dat", "bad\n")
    append(movielens_path / "ratings.dat", "bad\n1::2::3::4\n")
    with caplog.at_level(logging.WARNING, logger="tfctr"):
        log = MovieLens(movielens_path, on_bad_line="skip")
    assert log.bad_lines == 4
    assert log.first_bad_line.number == 31
    assert log.first_bad_line.path == movielens_path / "users.dat"
    (record,) = caplog.records
    assert record.getMessage().startswith("Left out 4 bad lines. The first: ")


def test_clean_files_have_no_bad_line(movielens_path):
    log = MovieLens(movielens_path)
    assert log.bad_lines == 0 and log.first_bad_line is None


@pytest.mark.parametrize(
    ("content", "left"),
    [("", "Check"), ("bad\nbad\n", "Left out so far: 2, the first: .*s.dat, line 1, ")],
)
def test_a_log_without_any_rating_is_refused(movielens_path, content, left):
    (movielens_path / "ratings.dat").write_text(content)
    message = f"ratings.dat' must hold at least one good rating. Received: none. {left}"
    with pytest.raises(ValueError, match=message):
        MovieLens(movielens_path, on_bad_line="skip")


def test_users_that_are_all_bad_leave_no_rating(movielens_path):
    (movielens_path / "users.dat").write_text("bad\n")
    with pytest.raises(ValueError, match="Left out so far: 361, the first: .*users"):
        MovieLens(movielens_path, on_bad_line="skip")


@pytest.mark.parametrize("threshold", [1, 6, 3.5, "4"])
def test_threshold_must_part_the_ratings(movielens_path, threshold):
    with pytest.raises(ValueError, match=f"Received: threshold={threshold!r}. Ratings"):
        MovieLens(movielens_path, threshold)


def test_on_bad_line_must_be_known(movielens_path):
    with pytest.raises(ValueError, match="Received: on_bad_line='warn'. Use 'skip'"):
        MovieLens(movielens_path, on_bad_line="warn")


def test_missing_directory_is_named(tmp_path):
    with pytest.raises(FileNotFoundError) as error:
        MovieLens(tmp_path / "nowhere")
    assert str(error.value) == (
        "`path` must be a directory with the files ratings.dat, users.dat, movies.dat."
        f" Received: path='{tmp_path / 'nowhere'}', which does not exist. "
        "Download MovieLens 1M (ml-1m.zip) from grouplens.org and unpack it."
    )


def test_missing_file_is_named(movielens_path):
    (movielens_path / "users.dat").unlink()
    with pytest.raises(FileNotFoundError, match="which has no users.dat. Download"):
        MovieLens(movielens_path)


def test_parent_directory_is_told_where_the_files_are(movielens_path):
    match = f"has no ratings.dat, users.dat, .* in '{movielens_path}': pass that."
    with pytest.raises(FileNotFoundError, match=match):
        MovieLens(movielens_path.parent)


def test_file_is_told_to_be_in_a_directory(movielens_path):
    match = f"which is a file. They are in '{movielens_path}': pass that."
    with pytest.raises(FileNotFoundError, match=match):
        MovieLens(movielens_path / "ratings.dat")


def test_real_data_set_has_its_published_size(real_path):
    log = MovieLens(real_path)
    num_train, num_test = log.num_examples("train"), log.num_examples("test")
    assert num_train + num_test == 1_000_209
    assert num_test == 99_645
    sizes = {
        feature.name: len(log.vocabulary(feature.name)) for feature in log.features
    }
    assert sizes == {
        "user": 6040,
        "movie": 3706,
        "age": 7,
        "occupation": 21,
        "gender": 2,
        "zip": 3439,
        "genres": 18,
    }
    clicks = sum(
        float(labels.numpy().sum())
        for split in ("train", "test")
        for _, labels in log.batches(split, 65_536)
    )
    assert clicks == 575_281


def test_real_data_set_in_latin_1_reads_the_same(real_path, tmp_path):
    for name in ("ratings.dat", "users.dat", "movies.dat"):
        shutil.copyfile(real_path / name, tmp_path / name)
    titles = (real_path / "movies.dat").read_text("utf-8")
    (tmp_path / "movies.dat").write_text(titles, "latin-1")
    utf_8, latin_1 = MovieLens(real_path), MovieLens(tmp_path)
    for one, other in zip(
        utf_8.batches("test", 1024), latin_1.batches("test", 1024), strict=True
    ):
        pair = (
            tf.nest.flatten(batch, expand_composites=True) for batch in (one, other)
        )
        for tensor, other_tensor in zip(*pair, strict=True):
            np.testing.assert_array_equal(tensor, other_tensor)

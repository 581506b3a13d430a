"""A small MovieLens directory, written by hand, and small files of other formats."""

import pytest

from helpers import log_files
from tfctr.data import text_blocks, tf_record

# Users 1 to 30; movies 10, 20, ..., 120; every user rates every movie: 360 ratings.
USERS, MOVIES = range(1, 31), range(10, 121, 10)
GENRES = ("Drama", "Comedy|Drama", "", "Action|Comedy|Drama")


def rating(user, movie):
    return (user * 7 + movie // 10 * 3) % 5 + 1


@pytest.fixture
def movielens_path(tmp_path):
    """Returns a directory that may be edited by the test."""
    ratings = [f"{u}::{m}::{rating(u, m)}::0\n" for u in USERS for m in MOVIES]
    users = [f"{u}::{'FM'[u % 2]}::{18 + u}::{u % 5}::{u:05}\n" for u in USERS]
    movies = [f"{m}::Film {m} (1999)::{GENRES[m // 10 % 4]}\n" for m in MOVIES]
    path = tmp_path / "ml-tiny"
    path.mkdir()
    (path / "ratings.dat").write_text("".join(ratings))
    (path / "users.dat").write_text("".join(users))
    (path / "movies.dat").write_text("".join(movies))
    return path


@pytest.fixture
def small_blocks(monkeypatch):
    """Makes blocks of some dozen examples, so that small files have several."""
    monkeypatch.setattr(text_blocks, "BLOCK_BYTES", 8_000)
    monkeypatch.setattr(text_blocks, "_READ_BYTES", 2_000)
    monkeypatch.setattr(tf_record, "_BLOCK_RECORDS", 50)


@pytest.fixture
def open_small_log(tmp_path, small_blocks):
    """Opens a log of 400 examples: "criteo", "avazu", "parquet" or "tfrecord"."""

    def open_log(kind, **options):
        if kind == "parquet":
            pytest.importorskip("pyarrow")
        directory = tmp_path / "files"
        directory.mkdir(exist_ok=True)
        return log_files.open_small(kind, directory, **options)

    return open_log

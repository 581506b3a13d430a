"""A small MovieLens directory, written by hand."""

import pytest

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

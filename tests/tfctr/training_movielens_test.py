"""`train` on MovieLens: a small log written by hand, and the real one."""

import re

import numpy as np
import pytest

from helpers.training_runs import config, load, train
from tfctr import training
from tfctr.data import MovieLens

GENRES = ("Drama", "Comedy|Drama", "", "Action|Comedy")
USERS, MOVIES = range(1, 31), range(10, 130, 10)


@pytest.fixture
def movielens_path(tmp_path):
    """360 ratings: whoever is older likes films with a higher number."""
    path = tmp_path / "ml-tiny"
    path.mkdir()
    ratings = [
        f"{user}::{movie}::{5 if user * 4 > movie else 1}::0\n"
        for user in USERS
        for movie in MOVIES
    ]
    users = [f"{u}::{'FM'[u % 2]}::{u}::{u % 5}::{u:05}\n" for u in USERS]
    movies = [f"{m}::Film {m} (1999)::{GENRES[m // 10 % 4]}\n" for m in MOVIES]
    (path / "ratings.dat").write_text("".join(ratings))
    (path / "users.dat").write_text("".join(users))
    (path / "movies.dat").write_text("".join(movies))
    return path


FAST = ("run.batch_size=32", "run.epochs=4", "tables.learning_rate=0.05")


@pytest.mark.parametrize("embedding", ["dynamic", "static"])
def test_movielens_trains_end_to_end(embedding, movielens_path, tmp_path):
    result = train(
        {"data": {"kind": "movielens", "path": str(movielens_path)}},
        tmp_path,
        *FAST,
        "run.learning_rate=0.01",
        f"model.embedding={embedding}",
    )
    assert result["auc"] > 0.9
    assert "best_auc" not in result
    log = MovieLens(movielens_path)
    if embedding == "static":
        # All ids of both splits, and one row for strangers, of each feature.
        rows = sum(len(log.vocabulary(f.name)) + 1 for f in log.features)
        assert result["table_bytes"] == rows * (1 + 16) * 4
    else:
        columns, _ = next(iter(log.batches("train", log.num_examples("train"))))
        columns["genres"] = columns["genres"].flat_values
        rows = sum(len(np.unique(column.numpy())) for column in columns.values())
    assert result["rows"] == 2 * rows
    loaded = load(tmp_path)
    inputs, labels = next(iter(log.batches("test", log.num_examples("test"))))
    scores = loaded.predict(inputs, verbose=0)[:, 0]
    above = scores[labels == 1][:, None] > scores[labels == 0]
    assert result["auc"] == pytest.approx(above.mean(), abs=0.01)


def test_bad_lines_are_left_out_where_the_config_says_so(movielens_path, tmp_path):
    ratings = movielens_path / "ratings.dat"
    ratings.write_text(ratings.read_text() + "bad\n")
    sections = {"data": {"kind": "movielens", "path": str(movielens_path)}}
    with pytest.raises(ValueError, match=re.escape("Received: 'bad'.")):
        training.open_log(config(sections, tmp_path))
    skipping = config(sections, tmp_path, "data.on_bad_line=skip")
    assert training.open_log(skipping).bad_lines == 1


@pytest.mark.slow
def test_one_epoch_of_the_real_movielens(data_dir, tmp_path):
    path = data_dir / "ml-1m"
    if not path.is_dir():
        pytest.skip(f"there is no {path}: the files of MovieLens 1M.")
    result = train(
        {"data": {"kind": "movielens", "path": str(path)}},
        tmp_path,
        "run.epochs=1",
        "run.steps_per_execution=8",
    )
    assert 0.78 < result["auc"] < 0.82

"""`train`: from a config to a result, on logs small enough to check by hand."""

import json
import re

import numpy as np
import pytest

from helpers.training_runs import TINY, config, load, train
from keras_layers import DynamicEmbedding
from tfctr import builders, training
from tfctr.config import TrainConfig
from tfctr.data import SyntheticClickLog
from tfctr.models import DCN, DLRM, DCNv2, DeepFM, WideDeep

SMALL = {
    "data": {"num_examples": 20_000, "fields": 4, "ids_per_field": 200, "num_dense": 2},
    "model": {"dim": 4, "hidden_units": [16], "dropout": 0.1},
    "tables": {"learning_rate": 0.01},
    "run": {"epochs": 2, "batch_size": 250, "learning_rate": 0.01},
}


def rows_of(model):
    """All rows of all tables, by feature and id."""
    return {
        (name, id): row.tolist()
        for layer in model.layers
        if isinstance(layer, DynamicEmbedding)
        for name, ids, rows in layer.export(1 << 16)
        for id, row in zip(ids.tolist(), rows, strict=True)
    }


# A run on a synthetic log.


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """The directory and the result of one run."""
    directory = tmp_path_factory.mktemp("small") / "made" / "here"
    return directory, train(SMALL, directory)


@pytest.fixture(scope="module")
def log():
    return SyntheticClickLog(seed=1, **SMALL["data"])


def test_the_result_is_json(small):
    _, result = small
    assert json.loads(json.dumps(result)).keys() == result.keys()
    assert result.keys() == {
        "auc",
        "log_loss",
        "examples_per_second",
        "rows",
        "best_auc",
        "best_log_loss",
        "table_bytes",
        "tables",
        "peak_memory_bytes",
        "ranks",
        "config",
    }
    assert result["ranks"] == 1


def test_the_model_is_better_than_chance_and_no_better_than_the_teacher(small):
    _, result = small
    # 2000 test examples: two standard deviations of an AUC are below 0.03.
    assert 0.65 < result["auc"] <= result["best_auc"] + 0.03
    constant = -(0.25 * np.log(0.25) + 0.75 * np.log(0.75))
    assert result["best_log_loss"] - 0.03 <= result["log_loss"] < constant


def test_best_scores_are_those_of_the_true_probabilities(small, log):
    labels, scores = log.labels("test") == 1, log.probabilities("test")
    above = scores[labels][:, None] > scores[~labels]
    assert small[1]["best_auc"] == pytest.approx(above.mean(), abs=1e-9)
    of_label = np.where(labels, scores, 1 - scores)
    expected = -np.log(of_label).mean()
    assert small[1]["best_log_loss"] == pytest.approx(expected, rel=1e-6)


def test_rows_are_the_ids_of_the_train_split_(small, log):
    inputs, _ = next(iter(log.batches("train", log.num_examples("train"))))
    distinct = sum(len(np.unique(column)) for column in inputs["ids"].numpy().T)
    assert small[1]["rows"] == 2 * distinct  # A vector and a weight each.
    steps = {stats["step"] for stats in small[1]["tables"].values()}
    assert steps == {2 * 72}  # 18,000 examples in batches of 250, twice.
    assert small[1]["tables"].keys() == {"vectors/vectors", "weights/weights"}
    of_tables = [stats["memory_bytes"] for stats in small[1]["tables"].values()]
    assert small[1]["table_bytes"] == sum(of_tables)
    assert small[1]["peak_memory_bytes"] > small[1]["table_bytes"]


def test_scores_are_those_of_the_saved_model_on_the_whole_test_split(small, log):
    directory, result = small
    model = load(directory)
    inputs, labels = next(iter(log.batches("test", log.num_examples("test"))))
    scores, labels = model.predict(inputs, verbose=0)[:, 0], labels.numpy() == 1
    assert len(scores) == 2000
    above = scores[labels][:, None] > scores[~labels]
    ties = scores[labels][:, None] == scores[~labels]
    assert result["auc"] == pytest.approx((above + ties / 2).mean(), abs=1e-6)
    expected = -np.log(np.where(labels, scores, 1 - scores)).mean()
    assert result["log_loss"] == pytest.approx(expected, rel=1e-5)


def test_the_config_is_kept(small):
    directory, result = small
    expected = config(SMALL, directory)
    assert TrainConfig.from_dict(result["config"]) == expected
    kept = json.loads((directory / "config.json").read_text())
    assert TrainConfig.from_dict(kept) == expected


def test_two_runs_are_equal_to_the_bit(small, tmp_path):
    directory, first = small
    second = train(SMALL, tmp_path)
    for name in ("auc", "log_loss", "rows", "best_auc", "best_log_loss"):
        assert second[name] == first[name]
    models = [load(directory), load(tmp_path)]
    for left, right in zip(*(model.get_weights() for model in models), strict=True):
        np.testing.assert_array_equal(left, right)
    assert rows_of(models[0]) == rows_of(models[1])


CROSSES = {"num_cross_layers": 2, "num_experts": 5, "rank": 6}


@pytest.mark.parametrize("embedding", ["dynamic", "static"])
@pytest.mark.parametrize(
    ("name", "kind", "sections", "sizes"),
    [
        ("wide_deep", WideDeep, {}, {}),
        ("deep_fm", DeepFM, {}, {}),
        ("dcn", DCN, CROSSES, {"num_cross_layers": 2}),
        ("dcn_v2", DCNv2, CROSSES, CROSSES),
        ("dcn_v2", DCNv2, {"rank": 0}, {"rank": None, "num_cross_layers": 3}),
        ("dlrm", DLRM, {"bottom_units": [7, 5]}, {"bottom_units": (7, 5)}),
        ("dlrm", DLRM, {"bottom_units": []}, {"bottom_units": ()}),
    ],
)
def test_every_network_has_the_sizes_of_the_config(
    name, kind, sections, sizes, embedding, log
):
    model = {**SMALL["model"], "name": name, "embedding": embedding, **sections}
    asked = TrainConfig.from_dict({**SMALL, "model": model})
    built = training.build_model(asked, log)
    assert type(built) is kind
    assert bool(built.embedding_layers) == (embedding == "static")
    expected = {"dim": 4, "hidden_units": (16,), "dropout": 0.1, **sizes}
    assert {size: getattr(built, size) for size in expected} == expected


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return train(TINY, tmp_path_factory.mktemp("tiny"))


def test_another_seed_is_another_run(tiny, tmp_path):
    assert train(TINY, tmp_path, "run.seed=2")["log_loss"] != tiny["log_loss"]


@pytest.mark.parametrize("steps_per_execution", [3, 8, 100])
def test_steps_per_execution_change_no_result(steps_per_execution, tiny, tmp_path):
    # Of 8 batches an epoch: executions that end within, with and beyond an epoch.
    result = train(TINY, tmp_path, f"run.steps_per_execution={steps_per_execution}")
    assert {stats["step"] for stats in result["tables"].values()} == {16}
    for name in ("auc", "log_loss", "rows"):
        assert result[name] == tiny[name]


@pytest.mark.parametrize("optimizer", ["rowwise_adagrad", "rowwise_adam", "ftrl"])
def test_a_model_with_any_optimizer_of_the_tables_loads_again(optimizer, tmp_path):
    result = train(TINY, tmp_path, f"tables.optimizer={optimizer}", "run.epochs=1")
    model = load(tmp_path)
    assert len(rows_of(model)) == result["rows"] > 0


def test_a_budget_with_eviction_keeps_rows_within_it(tiny, tmp_path):
    result = train(TINY, tmp_path, "tables.ram=2KB", "tables.eviction_policy=clock")
    row_bytes = min(stats["row_bytes"] for stats in result["tables"].values())
    assert 0 < result["rows"] <= 2000 // row_bytes < tiny["rows"]


# The report.


def test_the_report_tells_the_results_in_words():
    result = {
        "auc": 0.81234,
        "log_loss": 0.5,
        "examples_per_second": 123456.7,
        "rows": 54321,
        "table_bytes": 2_000_000,
        "peak_memory_bytes": 3_500_000_000,
    }
    assert training.report(result).splitlines() == [
        "  test AUC      0.8123",
        "  test log loss 0.5000",
        "  throughput    123,457 examples/s",
        "  rows          54,321",
        "  memory        3.5 GB at the peak, of which 2.0 MB tables",
    ]
    result |= {"best_auc": 0.9, "best_log_loss": 0.4}
    first, second, *_ = training.report(result).splitlines()
    assert first == "  test AUC      0.8123   (best reachable 0.9000)"
    assert second == "  test log loss 0.5000   (best reachable 0.4000)"


# Clipping.


def test_the_share_of_clipped_rows_is_that_of_all_ranks():
    of_ranks = [
        {
            "rows": 2,
            "step": 7,
            "row_bytes": 40,
            "updated_rows": updated,
            "clipped_rows": clipped,
            "clipped_share": share,
        }
        for updated, clipped, share in ((30, 3, 0.1), (10, 9, 0.9))
    ]
    assert training._sum_stats(of_ranks) == {
        "rows": 4,
        "step": 7,
        "row_bytes": 40,
        "updated_rows": 40,
        "clipped_rows": 12,
        "clipped_share": 0.3,
    }
    idle = {name: 0 for name in of_ranks[0]}
    assert training._sum_stats([idle, idle])["clipped_share"] == 0.0


def test_static_tables_are_not_clipped_in_silence(log):
    asked = TrainConfig.from_dict(SMALL, ["model.embedding=static", "tables.l2=1e-5"])
    message = (
        "go with model.embedding='dynamic'. Received: tables.clip_ratio=0.0, tables"
    )
    with pytest.raises(ValueError, match=re.escape(message)):
        training.build_model(asked, log)


def test_clipping_and_warm_up_reach_the_optimizers(log):
    clipping = {"clip_ratio": 0.5, "clip_floor": 1e-4, "l2": 1e-5, "stddev": 0.02}
    tables = {**SMALL.get("tables", {}), "learning_rate": 0.25, **clipping}
    run = {**SMALL["run"], "learning_rate": 0.5, "warmup_epochs": 2.0}
    asked = TrainConfig.from_dict({**SMALL, "tables": tables, "run": run})
    built = training.build_model(asked, log)
    of_vectors = built.get_layer("vectors").features["ids"].table
    described = of_vectors.sparse_optimizer()
    assert described.clip_ratio == 0.5
    assert (described.clip_floor, described.l2_penalty) == (1e-4, 1e-5)
    assert described.learning_rate == 0.25
    assert of_vectors.initializer.stddev == 0.02
    of_weights = built.get_layer("weights").features["ids"].table.sparse_optimizer()
    assert (of_weights.clip_ratio, of_weights.l2_penalty) == (None, 1e-5)
    rate = builders.build_optimizer(asked, log).learning_rate
    steps = 2 * log.steps_per_epoch("train", asked.run.batch_size)
    optimizer = builders.build_optimizer(asked, log)
    assert float(rate) == pytest.approx(1e-8)
    optimizer.iterations.assign(steps // 2)
    assert float(optimizer.learning_rate) == pytest.approx(0.25)
    optimizer.iterations.assign(steps)
    assert float(optimizer.learning_rate) == pytest.approx(0.5)

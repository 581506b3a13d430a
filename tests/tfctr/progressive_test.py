"""Progressive training: windows, negatives, baselines and the loop, against oracles."""

import collections
import csv
import json
import math
import re
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tfctr import builders, cli, distributed, progressive, training
from tfctr.config import TrainConfig
from tfctr.data import FeatureDeclaration, NegativeSampling, TimeColumn, TimedLog
from tfctr.data.negative_sampler import NegativeSampler
from tfctr.metrics import auc
from tfctr.progressive.scored import Scored, mean_of

SECOND = 10**9
ITEM = FeatureDeclaration("item", column="ad")
FEATURES = (ITEM, FeatureDeclaration("user"))


def draw_log(num_rows=600, hours=4, seed=0):
    """Clicks of some hours: items come and go, and users like some more than others."""
    generator = np.random.default_rng(seed)
    times = np.sort(generator.integers(0, hours * 3600, num_rows)) + 7200
    return {
        "time": times,
        "ad": 10 * (times // 7200) + generator.geometric(0.4, num_rows),
        "user": generator.integers(0, 40, num_rows),
        "label": generator.integers(0, 2, num_rows),
        "row": np.arange(num_rows),
    }


@pytest.fixture
def write(tmp_path):
    """Writes columns as Parquet, as `files` files with row groups of `group` rows."""

    def write(columns, files=1, group=100):
        directory = tmp_path / "log"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        table = pa.table(columns)
        size = -(-len(table) // files)
        for number in range(files):
            part = table.slice(number * size, size)
            pq.write_table(part, directory / f"{number}.parquet", row_group_size=group)
        return directory

    return write


def open_log(path, item="ad", negatives=None, features=FEATURES, unit="s"):
    return TimedLog(
        path, features, TimeColumn("time", unit), item=item, negatives=negatives
    )


def examples_of(log, name):
    """The values of a feature in the order of the log."""
    return log.examples.inputs[name]


# Windows.


@pytest.mark.parametrize(("files", "group"), [(1, 1000), (1, 7), (3, 50), (2, 1)])
def test_windows_hold_every_row_once_and_in_order(write, files, group):
    columns = draw_log(90 if group == 1 else 600)
    features = [FeatureDeclaration("row")]
    log = open_log(write(columns, files, group), item="", features=features)
    windows = list(log.windows(1800))
    rows = [examples_of(window.log, "row") for window in windows]
    assert np.concatenate(rows).tolist() == columns["row"].tolist()
    # The oracle: rows by the number of their half hour.
    expected = collections.defaultdict(list)
    for time, row in zip(columns["time"].tolist(), columns["row"], strict=True):
        expected[time // 1800].append(row)
    assert [part.tolist() for part in rows] == list(expected.values())
    assert [window.start for window in windows] == [
        number * 1800 * SECOND for number in expected
    ]
    assert [window.num_rows for window in windows] == list(map(len, rows))
    labels = np.concatenate([window.labels for window in windows])
    assert labels.tolist() == columns["label"].tolist()


def test_a_window_without_rows_is_left_out(write):
    columns = {"time": [0, 10, 7200], "ad": [1, 2, 1], "user": [1, 1, 1]}
    log = open_log(write({**columns, "label": [0, 1, 1]}))
    assert [window.start // SECOND for window in log.windows(3600)] == [0, 7200]


@pytest.mark.parametrize(
    ("kind", "unit"),
    [
        (pa.timestamp("ms"), "s"),  # Its own unit stands.
        (pa.timestamp("us", "UTC"), "s"),
        (pa.int64(), "ms"),
        (pa.int32(), "ms"),
    ],
)
def test_times_have_units(write, kind, unit):
    scale = 1000 if getattr(kind, "unit", "ms") == "ms" else 10**6
    times = pa.array([scale * 3, scale * 3 + scale // 2, scale * 7], pa.int64())
    columns = {"time": times.cast(kind), "ad": [1, 2, 1], "user": [1, 1, 1]}
    log = open_log(write({**columns, "label": [0, 1, 1]}), unit=unit)
    windows = list(log.windows(2.0))
    assert [window.start for window in windows] == [2 * SECOND, 6 * SECOND]
    assert windows[0].times.tolist() == [3 * SECOND, 3 * SECOND + SECOND // 2]


def test_lists_strings_and_dense_columns_pass_through(write):
    columns = {
        "time": [0, 1, 2, 3],
        "ad": ["a", "b", "a", "c"],
        "tags": [[1, 2], [], [3], [4, 5]],
        "price": [0.5, 1.0, 2.0, 4.0],
    }
    features = [
        FeatureDeclaration("ad", kind="string"),
        FeatureDeclaration("tags", kind="ids"),
        FeatureDeclaration("price", kind="dense"),
    ]
    log = open_log(write(columns), negatives=NegativeSampling(1), features=features)
    (window,) = log.windows(3600)
    ((inputs, labels),) = window.log.batches("train", 64)
    # The first click has an empty pool; each other has a non-click behind it.
    assert labels.numpy().tolist() == [1, 1, 0, 1, 0, 1, 0]
    assert inputs["price"].numpy().tolist() == [0.5, 1, 1, 2, 2, 4, 4]
    tags = [[1, 2], [], [], [3], [3], [4, 5], [4, 5]]
    assert inputs["tags"].to_list() == tags
    items = inputs["ad"].numpy().tolist()
    assert items[::2] == [b"a", b"a", *items[4::2]]
    assert items[5] == b"c" and set(items[4:7:2]) <= {b"a", b"b"}
    # Only the third click is of an item that was in its pool.
    assert examples_of(window.tested, "price").tolist() == [2, 2]
    assert window.log.vocabulary("tags").tolist() == [1, 2, 3, 4, 5]


# Negatives.

SAMPLING = NegativeSampling(3, pool_seconds=3000.0, seed=5)


def drawn_by_click(path, seconds, sampling=SAMPLING):
    """By row: label and item of its examples, and whether they are tested."""
    features = [ITEM, FeatureDeclaration("row")]
    log = open_log(path, negatives=sampling, features=features)
    found = collections.defaultdict(list)
    for window in log.windows(seconds):
        rows, items = (examples_of(window.log, name) for name in ("row", "item"))
        assert items.tolist() == window.items.tolist()
        examples = zip(rows, window.labels, items, window.is_tested, strict=True)
        for row, *example in examples:
            found[int(row)].append(tuple(part.item() for part in example))
    return found


def test_negatives_come_from_the_pool_of_the_past(write):
    columns = draw_log()
    found = drawn_by_click(write(columns), 3600)
    times, items = columns["time"], columns["ad"]
    assert sorted(found) == list(range(len(times)))
    for row, examples in found.items():
        pool = set(items[(times < times[row]) & (times >= times[row] - 3000)].tolist())
        (label, item, is_tested), *negatives = examples
        assert (label, item) == (1, items[row])
        assert len(negatives) == (3 if pool else 0)
        assert {(label, known) for label, _, known in negatives} <= {(0, is_tested)}
        assert {item for _, item, _ in negatives} <= pool
        assert is_tested == (item in pool)


def test_negatives_are_the_same_for_all_windows_and_files(write):
    columns = draw_log()
    found = drawn_by_click(write(columns), 3600)
    assert drawn_by_click(write(columns, group=13), 3600) == found
    assert drawn_by_click(write(columns, files=3), 900) == found
    other = NegativeSampling(3, pool_seconds=3000.0, seed=6)
    assert drawn_by_click(write(columns), 3600, other) != found


def test_what_comes_later_does_not_change_negatives(write):
    columns = draw_log()
    found = drawn_by_click(write(columns), 3600)
    changed = {**columns, "ad": columns["ad"].copy()}
    changed["ad"][300:] = -1
    other = drawn_by_click(write(changed), 3600)
    assert [other[row] for row in range(300)] == [found[row] for row in range(300)]


def test_negatives_are_drawn_by_popularity():
    times = np.zeros(10, np.int64)
    items = np.array([7] * 6 + [8] * 3 + [9])
    sampler = NegativeSampler(NegativeSampling(2000, seed=3))
    assert sampler.draw(times, items).labels.all()  # None lies before another.
    drawn = sampler.draw(np.array([SECOND]), np.array([7]))
    shares = [np.mean(drawn.items[1:] == item) for item in (7, 8, 9)]
    # Four standard deviations of the largest.
    assert shares == pytest.approx([0.6, 0.3, 0.1], abs=4 * (0.24 / 2000) ** 0.5)


# Baselines.


def test_baselines_equal_counts_by_hand():
    columns = draw_log(400)
    times, items = columns["time"] * SECOND, columns["ad"]
    past = progressive.Popularity(recent_seconds=1800.0, pool_seconds=5000.0)
    for start in range(7200, 7200 + 6 * 3600, 1200):
        now = start * SECOND
        before = times < now
        asked = np.array([*np.unique(items), -5])
        scores = past.scores(now, asked)
        assert tuple(scores) == past.names
        every = collections.Counter(items[before].tolist())
        recent = collections.Counter(
            items[before & (times >= now - 1800 * SECOND)].tolist()
        )
        pool = collections.Counter(
            items[before & (times >= now - 5000 * SECOND)].tolist()
        )
        f = max(recent.total(), 1) / max(pool.total(), 1)
        for index, item in enumerate(asked.tolist()):
            assert {name: values[index] for name, values in scores.items()} == {
                "popularity": every[item] / max(every.total(), 1),
                "recent_popularity": recent[item] / max(recent.total(), 1),
                "trend": pytest.approx(
                    (recent[item] + 10 * f) / (f * (pool[item] + 10))
                ),
            }
        window = (times >= now) & (times < now + 1200 * SECOND)
        past.add(times[window], items[window])


def test_without_a_pool_there_is_no_trend():
    past = progressive.Popularity(recent_seconds=1.0)
    assert past.names == ("popularity", "recent_popularity")
    assert tuple(past.scores(0, np.array([b"x"], object))) == past.names


# Metrics of windows.


def test_metrics_of_one_class_or_of_nothing_are_nan():
    one = np.ones(2, np.float32)
    scored = Scored(one, one * 0.5, one, {"popularity": one})
    found = scored.metrics()
    assert math.isnan(found["auc"]) and math.isnan(found["popularity_auc"])
    assert found["log_loss"] == pytest.approx(math.log(2))
    empty = Scored(*[np.zeros(0, np.float32)] * 3, {})
    assert all(map(math.isnan, empty.metrics().values()))


def test_the_mean_of_windows_leaves_out_what_is_nan():
    windows = [
        {"tested_examples": 2, "auc": 0.5},
        {"tested_examples": 9, "auc": math.nan},
        {"tested_examples": 6, "auc": 0.9},
    ]
    assert mean_of(windows, ["auc"]) == {"auc": pytest.approx(0.8)}
    assert math.isnan(mean_of(windows[1:2], ["auc"])["auc"])


# The loop.

SECTIONS = {
    "data": {"kind": "parquet"},
    "model": {"dim": 4, "hidden_units": [8]},
    "tables": {"optimizer": "adagrad", "learning_rate": 0.1},
    "run": {"mode": "progressive", "batch_size": 128, "learning_rate": 0.01},
    "progressive": {"time": "time", "item": "ad", "negatives": 2},
    "features": [{"name": "item", "column": "ad"}, {"name": "user"}],
}


def config(path, directory, *overrides):
    places = [f"data.path={path}", f"run.directory={directory}"]
    return TrainConfig.from_dict(SECTIONS, [*places, *overrides])


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A run: its result, its log, what was done in which order, and predicted."""
    path = tmp_path_factory.mktemp("log")
    pq.write_table(pa.table(draw_log()), path / "0.parquet")
    order, tested, lines = [], [], []
    predict, fit = training.predict_split, training.fit

    def record_predict(model, log, split):
        order.append(("test", len(log.examples)))
        tested.append(predict(model, log, split))
        return tested[-1]

    def record_fit(model, log, *arguments, **options):
        order.append(("train", len(log.examples)))
        fit(model, log, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(training, "predict_split", record_predict)
        patch.setattr(training, "fit", record_fit)
        asked = config(path, tmp_path_factory.mktemp("run"))
        _, result = progressive.train(asked, lines.append)
    return path, result, order, tested, lines


def test_each_window_is_tested_before_it_is_trained_on(recorded):
    _, result, order, _, _ = recorded
    assert len(result["windows"]) == 4
    assert order == [
        step
        for window in result["windows"]
        for step in (
            ("test", window["tested_examples"]),
            ("train", window["examples"]),
        )
    ]
    # Once over all of it, every example a step's.
    steps = sum(-(-window["examples"] // 128) for window in result["windows"])
    assert {table["step"] for table in result["tables"].values()} == {steps}


def test_metrics_are_those_of_the_predictions(recorded):
    _, result, _, tested, lines = recorded
    for window, (labels, probabilities) in zip(result["windows"], tested, strict=True):
        assert window["auc"] == auc(labels, probabilities)
        right = np.where(labels == 1, probabilities, 1 - probabilities)
        loss = -np.log(right.astype(np.float64)).mean()
        assert window["log_loss"] == pytest.approx(loss)
    everything = [np.concatenate(part) for part in zip(*tested, strict=True)]
    (day,) = result["days"]
    assert day["auc"] == auc(*everything)
    assert day["clicks"] == 600 == sum(window["clicks"] for window in result["windows"])
    assert len(lines) == 1 and "day 1: 600 clicks" in lines[0]
    assert json.loads(json.dumps(result)).keys() == result.keys()


def test_baselines_of_the_loop_know_the_windows_before(recorded):
    path, result, *_ = recorded
    log = open_log(path, negatives=NegativeSampling(2, seed=1))
    counts = collections.Counter()
    for window, found in zip(log.windows(3600), result["windows"], strict=True):
        is_tested = window.is_tested
        scores = [counts[item] for item in window.items[is_tested].tolist()]
        assert found["popularity_auc"] == auc(window.labels[is_tested], scores)
        counts.update(window.items[window.labels == 1].tolist())


def test_labelled_logs_need_neither_item_nor_negatives(write, tmp_path):
    columns = draw_log(hours=2)
    is_late = columns["time"] >= 10_800
    columns["label"][~is_late] = 1  # The first window has one class.
    columns["time"][is_late] += 3 * 86_400
    asked = config(
        write(columns), tmp_path, "progressive.item=", "progressive.negatives=0"
    )
    lines = []
    _, result = progressive.train(asked, lines.append)
    windows = result["windows"]
    assert [day["start"] for day in result["days"]] == [
        "1970-01-01T02:00:00+00:00",
        "1970-01-04T03:00:00+00:00",
    ]
    assert [line[:6] for line in lines] == ["day 1:", "day 2:"]
    assert windows[0]["auc"] is None and windows[0]["log_loss"] > 0
    assert all(window["auc"] is not None for window in windows[1:])
    assert sum(window["tested_examples"] for window in windows) == 600
    assert not any(name.endswith("_auc") for name in windows[0])
    assert "nan" in progressive.to_csv(windows).splitlines()[1]
    assert "AUC" in progressive.report(result)


def test_rows_are_bounded_by_expiry_and_admission(recorded, tmp_path):
    path, result, *_ = recorded
    free = result["windows"]
    assert {window["expired_rows"] for window in free} == {0}
    assert sum(window["new_rows"] for window in free) == free[-1]["table_rows"]
    assert free[-1]["table_rows"] == result["rows"]
    overrides = ("expiry_every=2", "expiry_max_rows=15", "admission=count")
    asked = config(
        *(path, tmp_path, "run.batch_size=32", "tables.admission_min_count=9"),
        *(f"tables.{override}" for override in overrides),
    )
    bound = progressive.train(asked, lambda line: None)[1]["windows"]
    # Two tables; between two looks, each of two features of an example may make a row.
    assert max(window["table_rows"] for window in bound) <= 2 * (15 + 2 * 32 * 2)
    assert bound[-1]["table_rows"] < free[-1]["table_rows"]
    rows = 0
    for window in bound:
        assert window["expired_rows"] > 0
        rows += window["new_rows"] - window["expired_rows"]
        assert window["table_rows"] == rows
    assert bound[-1]["waiting_ids"] > 0 < bound[0]["refused_lookups"]
    assert {window["refused_lookups"] for window in free} == {0}


# The command.


def test_the_command_writes_results_windows_and_plot(write, tmp_path, capsys):
    path = write(draw_log(300, hours=2))
    lines = ['run.mode = "epochs"']  # --mode wins.
    for section, entries in SECTIONS.items():
        if section != "features":
            values = {k: v for k, v in entries.items() if k != "mode"}
            lines += [f"{section}.{k} = {json.dumps(v)}" for k, v in values.items()]
    for feature in SECTIONS["features"]:
        lines += ["[[features]]", *(f'{k} = "{v}"' for k, v in feature.items())]
    toml = tmp_path / "config.toml"
    toml.write_text("\n".join(lines))
    command = ["train", str(toml), "--set", f"data.path={path}"]
    command += ["--set", f"run.directory={tmp_path}/run", "--mode", "progressive"]
    output = tmp_path / "windows.csv"
    command += ["--json", f"{tmp_path}/result.json", "--output", str(output)]
    assert cli.main(command) == 0
    printed = capsys.readouterr().out
    assert "AUC of recent popularity" in printed and "day 1" in printed
    result = json.loads((tmp_path / "result.json").read_text())
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == list(result["windows"][0])
    assert [float(row["auc"]) for row in rows] == pytest.approx(
        [window["auc"] for window in result["windows"]], rel=1e-5
    )
    assert output.with_suffix(".svg").read_text().count("<svg") == 1
    assert (tmp_path / "run" / "model.keras").is_file()


def fails(capsys, command):
    assert cli.main(command) == 2
    return capsys.readouterr().err


def test_output_must_fit(write, tmp_path, capsys):
    toml = tmp_path / "config.toml"
    toml.write_text("")
    train = ["train", str(toml), "--output"]
    assert "Add --mode progressive" in fails(capsys, [*train, "x.csv"])
    train.insert(2, "--mode=progressive")
    assert "must end in .csv" in fails(capsys, [*train, "x.txt"])
    missing = str(tmp_path / "none" / "x.csv")
    assert "--output must name a file" in fails(capsys, [*train, missing])


# Mistakes.


def test_rows_that_lie_before_others_are_named(write):
    columns = draw_log(120)
    columns["time"][70] = columns["time"][69] - 3
    log = open_log(write(columns, group=50))
    with pytest.raises(ValueError, match=r"0\.parquet, row 71, must not lie before"):
        list(log.windows(3600))
    # The first row of a group is compared with the last of the group before.
    columns = draw_log(120)
    columns["time"][60:] -= 7200
    log = open_log(write(columns, files=2))
    with pytest.raises(ValueError, match=r"1\.parquet, row 1, .*Sort the rows"):
        list(log.windows(3600))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"time": None}, "must have a column 'time', of the time"),
        ({"time": [0.5, 1.0]}, "must hold the time: integers or timestamps"),
        ({"time": [0, None]}, "row 2, must have a time in column 'time'"),
        ({"time": [0, 2**62]}, "row 2, must have a time in 's' since 1970"),
        ({"label": None}, "must have a column 'label'"),
        ({"label": [1, 2]}, "row 2, must have a label of 0 or 1. Received: 2"),
        ({"ad": None}, "must have a column 'ad', of feature 'item'"),
        ({"ad": [[1], [2]]}, "must hold integers"),
    ],
)
def test_wrong_columns_are_named(write, change, message):
    columns = {"time": [0, 1], "ad": [1, 2], "user": [1, 1], "label": [0, 1]} | change
    given = {name: values for name, values in columns.items() if values is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        list(open_log(write(given)).windows(3600))


@pytest.mark.parametrize("seconds", [0, -1.0, 1e-12])
def test_a_window_has_a_length(write, seconds):
    log = open_log(write(draw_log(10)))
    with pytest.raises(ValueError, match="`seconds` must be a positive number"):
        list(log.windows(seconds))


def test_arguments_of_the_log_are_checked(write):
    path = write(draw_log(10))
    with pytest.raises(ValueError, match="`item`.* must be the column of a feature"):
        open_log(path, item="", negatives=NegativeSampling(2))
    with pytest.raises(ValueError, match="`item`.* must be the column of a feature"):
        open_log(path, item="row")
    with pytest.raises(ValueError, match="which column tells the time"):
        TimeColumn("")
    with pytest.raises(ValueError, match="must be one of 's', 'ms', 'us', 'ns'"):
        TimeColumn("time", "h")
    empty = {name: values[:0] for name, values in draw_log(10).items()}
    with pytest.raises(ValueError, match="must hold at least one row"):
        open_log(write(empty))
    with pytest.raises(ValueError, match="`num` must be a positive integer"):
        NegativeSampling(0)
    with pytest.raises(ValueError, match="`pool_seconds` must be a positive number"):
        NegativeSampling(1, pool_seconds=0.0)


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("run.mode=online", "'run.mode' must be one of 'epochs', 'progressive'"),
        ("progressive.window_seconds=0", "'progressive.window_seconds' must be"),
        ("progressive.pool_seconds=-1", "'progressive.pool_seconds' must be"),
        ("progressive.recent_seconds=nan", "'progressive.recent_seconds' must be"),
        ("progressive.negatives=-1", "'progressive.negatives' must be 0 or more"),
        ("progressive.time=", "which column tells the time"),
        ("data.kind=criteo", "'data.kind' must be 'parquet'"),
        ("data.path=", "'data.path' must name a file"),
        ("model.embedding=static", "goes with model.embedding='dynamic'"),
        ("run.warmup_epochs=1", "has no epochs to warm up in"),
        ("tables.admission=sometimes", "'tables.admission' must be one of 'count'"),
        ("tables.admission_min_count=0 tables.admission=count", "`min_count` must be"),
        ("tables.expiry_every=-1", "'tables.expiry_every' must be 0 or more"),
        ("tables.expiry_every=5", "'tables.expiry_every' goes with"),
        ("tables.expiry_max_rows=5", "'tables.expiry_every' goes with"),
    ],
)
def test_mistakes_in_the_config_are_told(write, tmp_path, override, message):
    path = write(draw_log(10))
    with pytest.raises(ValueError, match=re.escape(message)):
        progressive.train(config(path, tmp_path, *override.split()))


def test_admission_on_several_ranks_is_refused_before_training(
    write, tmp_path, monkeypatch
):
    asked = config(write(draw_log(10)), tmp_path, "tables.admission=count")
    monkeypatch.setattr(distributed, "size", lambda: 2)
    with pytest.raises(ValueError, match="goes with a single rank"):
        builders.build_model(asked, builders.open_timed_log(asked))


def test_only_its_own_loop_trains_progressively(write, tmp_path):
    asked = config(write(draw_log(10)), tmp_path)
    with pytest.raises(ValueError, match="needs run.mode='epochs'. .*'progressive'"):
        training.train(asked)


def test_features_must_be_declared(write, tmp_path):
    asked = TrainConfig.from_dict(
        {**SECTIONS, "features": []},
        [f"data.path={write(draw_log(10))}", f"run.directory={tmp_path}"],
    )
    with pytest.raises(ValueError, match="must be told its features"):
        progressive.train(asked)


# Real clicks.


def test_a_model_beats_popularity_on_real_clicks(data_dir, write, tmp_path):
    files = list((data_dir / "globo").glob("*.parquet"))
    if not files:
        pytest.skip(f"there is no Parquet file in {data_dir / 'globo'}")
    table = next(pq.ParquetFile(files[0]).iter_batches(20_000))
    path = write({name: table[name] for name in table.schema.names}, group=10_000)
    asked = TrainConfig.load(
        "examples/globo.toml",
        [f"data.path={path}", f"run.directory={tmp_path}", "run.batch_size=512"],
    )
    _, result = progressive.train(asked, lambda line: None)
    assert sum(window["clicks"] for window in result["windows"]) == 20_000
    assert result["auc"] > result["popularity_auc"] + 0.05

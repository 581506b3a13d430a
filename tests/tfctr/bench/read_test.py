"""`bench read`, small: every system reads every row."""

import json

import pytest

from tfctr.bench import read

pytest.importorskip("pyarrow")


def test_every_system_reads_its_formats(monkeypatch):
    monkeypatch.setattr(read, "COPIES", {"parquet": 2, "criteo_tsv": 2, "tfrecord": 1})
    counted = {}
    readers_of = read._readers

    def counting(directory):
        for key, reader in readers_of(directory):
            counted[key] = reader()
            yield key, reader

    monkeypatch.setattr(read, "_readers", counting)
    result = read.run(drawn_rows=2_000, rounds=2, wait_seconds=0.0)
    assert counted == {
        ("tfctr", "parquet"): 4_000,
        ("tfctr", "criteo_tsv"): 4_000,
        ("tfctr", "tfrecord"): 500,
        ("pyarrow", "parquet"): 4_000,
        ("pyarrow", "criteo_tsv"): 4_000,
        ("tf.data", "tfrecord"): 500,
    }
    systems = {(row["system"], row["format"]) for row in result["rows"]}
    assert systems == set(counted)
    assert all(row["rows_per_second"] > 0 for row in result["rows"])
    assert "tfctr_parquet/pyarrow_parquet" in result["ratios"]
    assert json.loads(json.dumps(result))["rows"] == result["rows"]
    text = read.table(result)
    assert "rows/s" in text and "criteo_tsv" in text

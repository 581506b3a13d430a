"""`tfctr inspect` of stores on disk, while they live and when their owner is gone.

The oracle reads the segments by FORMAT.md.
"""

import fcntl
import json
import re
import shutil
import struct

import keras
import numpy as np
import pytest

from keras_layers import DynamicEmbedding, TableConfig, TieredStorage
from tfctr import cli
from tfctr.checkpoint import inspect
from tfctr.checkpoint.inspection import is_whole, report

DIM = 60
ROW_BYTES = 24 + 4 * (DIM + DIM)  # Header, weights, one accumulator each.
PAGE = 4096
NUM_ROWS = 4000


def fill(ssd, first=0):
    """A layer of NUM_ROWS rows that are on disk, some of them in two copies."""
    table = TableConfig("users", DIM, keras.optimizers.Adagrad(0.1))
    layer = DynamicEmbedding(table, TieredStorage("8KB", ssd))
    layer.build((None,))
    for ids in np.split(np.arange(first, first + NUM_ROWS), 8):
        layer.write_rows(ids, np.ones((len(ids), DIM), "float32"))
    again = np.arange(first, first + NUM_ROWS // 8)
    layer.write_rows(again, np.zeros((len(again), DIM), "float32"))
    # After which every row is on disk, and nothing is left to be written.
    layer.begin_snapshot(ssd.parent / f"saved-{first}", ssd)
    layer.finish_snapshot()
    return layer


def facts_of(directory):
    """Segments, bytes, rows, and the set of ids that the files of a store hold."""
    segments, size, rows, ids = 0, 0, 0, set()
    for file in sorted(directory.glob("segment-*")):
        content = file.read_bytes()
        segments, size = segments + 1, size + len(content)
        for at in range(PAGE, len(content) // PAGE * PAGE, PAGE):
            (count,) = struct.unpack_from("<I", content, at + 4)
            rows += count
            for row in range(count):
                ids |= set(struct.unpack_from("<q", content, at + 24 + row * ROW_BYTES))
    return {"segments": segments, "bytes": size, "rows": rows, "keys": len(ids)}


def facts_by(result):
    return {name: result[name] for name in ("segments", "bytes", "rows", "keys")}


def store_in(ssd):
    (path,) = ssd.glob("tfctr-*")
    return path


@pytest.fixture
def ssd(tmp_path):
    return tmp_path / "ssd"


@pytest.fixture
def left_over(tmp_path, ssd):
    """The directory of a process that is dead, with rows in it."""
    layer = fill(ssd)
    path = tmp_path / "dead" / "tfctr-123-0"
    shutil.copytree(store_in(ssd), path)
    del layer
    return path


def a_segment_with_rows(store):
    return max(store.glob("segment-*"), key=lambda file: file.stat().st_size)


def flip(file, offset):
    with file.open("r+b") as opened:
        opened.seek(offset)
        byte = opened.read(1)[0]
        opened.seek(offset)
        opened.write(bytes([byte ^ 1]))


def test_a_living_store_is_described(ssd):
    layer = fill(ssd)
    path = store_in(ssd)
    result, facts = inspect(path), facts_of(path)
    (store,) = result["stores"]
    assert facts_by(store) == facts
    assert NUM_ROWS == facts["keys"] < facts["rows"]
    assert store["live_share"] == facts["keys"] / facts["rows"]
    assert store["is_in_use"]
    assert store["path"] == str(path)
    assert (store["dim"], store["num_slot_floats"]) == (DIM, DIM)
    assert store["row_bytes"] == ROW_BYTES
    assert store["damage"] == []
    text = report(result)
    assert f"{path}: store, in use: dim {DIM}, {DIM} optimizer values" in text
    assert f"{facts['rows']:,} rows of {facts['keys']:,} keys" in text
    assert f"at most {store['live_share']:.0%} live (rows in memory are not" in text
    assert text.endswith("No damage.")
    # It is as it was, and still has its directory.
    np.testing.assert_array_equal(layer.read_rows([NUM_ROWS - 1])[0], np.ones(DIM))
    assert inspect(path)["stores"][0]["is_in_use"]


def test_every_store_of_an_ssd_directory_is_described(tmp_path, ssd, capsys):
    layers = [fill(ssd), fill(ssd, first=10_000)]
    assert cli.main(["inspect", str(ssd), "--json", str(tmp_path / "out")]) == 0
    result = json.loads((tmp_path / "out").read_text())
    paths = sorted(str(path) for path in ssd.glob("tfctr-*"))
    assert [store["path"] for store in result["stores"]] == paths
    assert [store["is_in_use"] for store in result["stores"]] == [True, True]
    printed = capsys.readouterr().out
    assert all(f"{path}: store, in use" in printed for path in paths)
    assert (result["checkpoints"], result["tables"]) == ([], [])
    assert len(layers) == 2


def test_a_store_whose_owner_is_gone_is_left_as_it_is(left_over):
    before = {file.name: file.read_bytes() for file in left_over.iterdir()}
    for path in (left_over, left_over.parent):
        result = inspect(path)
        (store,) = result["stores"]
        assert not store["is_in_use"]
        assert facts_by(store) == facts_of(left_over)
        assert is_whole(result)
        assert "store, left over, its owner is gone" in report(result)
    assert {file.name: file.read_bytes() for file in left_over.iterdir()} == before


def test_a_store_without_rows_on_disk_is_described(tmp_path):
    layer = DynamicEmbedding(
        TableConfig("users", 2, "sgd"), TieredStorage("1MB", tmp_path)
    )
    layer.build((None,))
    result = inspect(tmp_path)
    assert result["stores"][0]["rows"] == 0
    assert "in use: no rows on disk yet, 0 B in 0 segments" in report(result)


@pytest.mark.parametrize("offset", [30, PAGE + 100, 2 * PAGE - 1])
def test_a_damaged_byte_is_found(left_over, tmp_path, capsys, offset):
    file = a_segment_with_rows(left_over)
    flip(file, offset)
    assert cli.main(["inspect", str(left_over), "--json", str(tmp_path / "out")]) == 1
    (line,) = json.loads((tmp_path / "out").read_text())["stores"][0]["damage"]
    page = offset // PAGE * PAGE
    assert f"'{file}' is damaged at offset {page}: checksum of a page" in line
    printed = capsys.readouterr().out
    assert f"  DAMAGED: {line}\n" in printed
    assert printed.endswith("There is damage: see above.\n")


def test_damage_of_a_living_store_is_found(ssd):
    layer = fill(ssd)
    file = a_segment_with_rows(store_in(ssd))
    flip(file, PAGE + 100)
    (store,) = inspect(ssd)["stores"]
    assert store["is_in_use"]
    (line,) = store["damage"]
    assert f"'{file}' is damaged at offset {PAGE}" in line
    del layer


def test_a_page_that_is_not_whole_is_damage_once_nobody_writes_it(left_over):
    file = a_segment_with_rows(left_over)
    size = file.stat().st_size
    with file.open("r+b") as opened:
        opened.truncate(size - 100)
    (line,) = inspect(left_over)["stores"][0]["damage"]
    start = (size - 100) // PAGE * PAGE
    assert f"'{file}' is damaged at offset {start}: it ends within a page" in line
    with (left_over / "LOCK").open("r+") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (store,) = inspect(left_over)["stores"]
    assert store["is_in_use"]
    assert store["damage"] == []
    assert facts_by(store) == facts_of(left_over)


def test_a_page_of_another_file_is_found(left_over):
    one, other = sorted(
        left_over.glob("segment-*"), key=lambda file: file.stat().st_size
    )[-2:]
    page = other.read_bytes()[PAGE : 2 * PAGE]
    with one.open("r+b") as opened:
        opened.seek(PAGE)
        opened.write(page)
    (line,) = inspect(left_over)["stores"][0]["damage"]
    assert f"'{one}' is damaged at offset {PAGE}: expected a page of segment" in line
    assert f"found one of segment {int(other.name.split('-')[1])} of shard" in line


def test_many_damaged_pages_are_summed_up(left_over):
    file = left_over / "segment-000000000999"
    source = a_segment_with_rows(left_over).read_bytes()
    file.write_bytes(source[:PAGE] + bytes(15 * PAGE))
    damage = inspect(left_over)["stores"][0]["damage"]
    assert len(damage) == 11
    assert damage[-1] == f"'{file}' has 5 more damaged pages."


def test_a_snapshot_is_not_taken_for_a_store(ssd):
    layer = fill(ssd)
    result = inspect(ssd.parent / "saved-0")
    assert result["stores"] == []
    (table,) = result["tables"]
    assert (table["rows"], table["dim"], table["damage"]) == (NUM_ROWS, DIM, [])
    assert report(result).endswith("% live\nNo damage.")
    del layer


def test_what_is_no_store_is_refused(tmp_path, capsys):
    (tmp_path / "LOCK").touch()
    expected = (
        "There must be a checkpoint, a snapshot or a store of tfctr to inspect: a "
        "directory with 'step-...', 'state.json' or 'MANIFEST' in it, or 'LOCK' and "
        "'segment-...', or the `ssd` directory with 'tfctr-...' in it. "
        f"Received: '{tmp_path}', which has none."
    )
    with pytest.raises(ValueError, match=re.escape(expected)):
        inspect(tmp_path)
    assert cli.main(["inspect", str(tmp_path)]) == 2
    assert expected in capsys.readouterr().err

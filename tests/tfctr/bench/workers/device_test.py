import os

from tfctr.bench.workers.device import PAGE_BYTES, Device


def test_pages_of_all_files_are_read_and_nothing_else(tmp_path, monkeypatch):
    (tmp_path / "deep").mkdir()
    (tmp_path / "a").write_bytes(bytes(2 * PAGE_BYTES + 100))
    (tmp_path / "deep" / "b").write_bytes(bytes(PAGE_BYTES))
    (tmp_path / "LOCK").write_bytes(b"")
    device = Device(str(tmp_path))
    assert device.num_pages == 3
    places = []
    read = os.preadv

    def remember(file, buffers, offset):
        name = os.path.basename(os.readlink(f"/proc/self/fd/{file}"))
        places.append((name, offset))
        return read(file, buffers, offset)

    monkeypatch.setattr(os, "preadv", remember)
    assert device.read([0, 1, 2, 1]) == 4 * PAGE_BYTES
    assert sorted(places) == [("a", 0), ("a", 4096), ("a", 4096), ("b", 0)]

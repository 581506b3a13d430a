import os
import subprocess
import sys

from tfctr.bench.workers.reading import ReadCounter, process_counts

COUNT = """
import os, sys
from tfctr.bench.workers.reading import process_counts
descriptor = os.open(sys.argv[1], os.O_RDONLY)
before, _ = process_counts()
for _ in range(1000):
    os.pread(descriptor, 10, 0)
after, _ = process_counts()
print(after - before)
"""


def test_every_read_call_of_the_process_is_counted(tmp_path):
    file = tmp_path / "file"
    file.write_bytes(bytes(100))
    # In a process of its own, of which no other thread reads.
    calls = int(subprocess.check_output([sys.executable, "-c", COUNT, file]))
    # Beside them, those of reading the counts.
    assert 1000 <= calls < 1020


def test_direct_reads_are_bytes_of_the_disk(tmp_path):
    from tfctr.bench.workers.device import PAGE_BYTES, Device

    (tmp_path / "file").write_bytes(os.urandom(8 * PAGE_BYTES))
    device = Device(str(tmp_path))
    _, before = process_counts()
    device.read([0, 3, 5])
    _, after = process_counts()
    assert after - before >= 3 * PAGE_BYTES


def test_medians_leave_the_warm_up_out_and_keep_cases_apart():
    rows = [0]
    counter = ReadCounter(lambda: rows[0], warm_up=2)

    def step(i):
        rows[0] += (100, 100, 1, 2, 6)[i]

    counted = {name: counter.counted(name, step) for name in ("one", "two")}
    for i in range(5):
        counted["one"](i)
    for i in range(3):
        counted["two"](i)
    facts = counter.facts()
    assert facts["one"]["rows_read"] == 2
    assert facts["two"]["rows_read"] == 1
    assert facts["one"].keys() == {"read_calls", "disk_bytes", "rows_read"}

import pathlib

import pytest

from tfctr.bench import machine, session
from tfctr.bench.rounds import Measurement, Turns
from tfctr.bench.systems import Interpreter, System, own_interpreter
from tfctr.bench.worker import WorkerFailed
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

OPTIONS = Options({"W": Workload(num_fields=1, batch_size=1)}, ("adagrad",))


@pytest.fixture
def measure(monkeypatch):
    """Sets what the measurement finds, and how busy others are."""

    def set_up(measurement, shares=(0.0,)):
        shares = iter(shares)

        def wait_for_quiet(limit):
            return machine.Wait(min(limit, 15.0), next(shares))

        def measure(workers, turns, deadline, wait):
            wait(deadline.left() / 2)
            measurement.names = [worker.system.name for worker in workers]
            for worker in workers:
                worker.close()
            return measurement

        monkeypatch.setattr(machine, "wait_for_quiet", wait_for_quiet)
        monkeypatch.setattr(session, "measure", measure)
        return measurement

    return set_up


def system(name):
    return System(name, "none", own_interpreter())


def test_missing_system_is_absent_with_the_way_to_get_it(measure):
    found = measure(Measurement())
    gone = Interpreter(pathlib.Path("gone/python"), remedy="make peers")
    run = session.Session()
    run.measure(
        [(system("keras"), OPTIONS), (System("fbgemm", "fbgemm", gone), OPTIONS)],
        Turns(),
    )
    assert found.names == ["keras"]
    assert run.record()["absent"] == [
        {
            "system": "fbgemm",
            "reason": "gone/python is missing.",
            "remedy": "make peers",
        }
    ]


def test_peer_that_failed_is_absent_with_its_reason(measure):
    measure(Measurement(failures={"keras": "out of memory"}))
    run = session.Session()
    run.measure([(system("keras"), OPTIONS)], Turns())
    assert run.record()["absent"] == [
        {"system": "keras", "reason": "out of memory", "remedy": None}
    ]


def test_failure_of_tfctr_itself_is_an_error(measure):
    measure(Measurement(failures={"tfctr": "no library"}))
    with pytest.raises(WorkerFailed, match="no library"):
        session.Session().measure([(system("tfctr"), OPTIONS)], Turns())


def test_differing_versions_are_told_with_their_system(measure):
    measure(
        Measurement(
            versions={
                "tfctr": {"tensorflow": "2.16.2"},
                "deepctr": {"tensorflow": "2.15.1", "deepctr": "0.9.4"},
            }
        )
    )
    run = session.Session()
    run.measure([(system("tfctr"), OPTIONS)], Turns())
    versions = run.record()["versions"]
    assert versions["tensorflow"] == "2.16.2"
    assert versions["tensorflow (deepctr)"] == "2.15.1"
    assert versions["deepctr"] == "0.9.4"
    assert {"tfctr", "git", "python", "numpy"} <= set(versions)


def test_patience_is_shared_by_the_measurements_of_a_session(measure):
    measure(Measurement(), shares=(0.9, 0.4))
    run = session.Session(seconds=100.0, wait_seconds=20.0)
    run.measure([(system("keras"), OPTIONS)], Turns())
    run.measure([(system("keras"), OPTIONS)], Turns())
    facts = run.record()["machine"]
    # 15 seconds, then the 5 that were left of 20.
    assert facts["waited_seconds"] == 20.0
    assert facts["other_cpu_share_before"] == 0.9
    assert facts["quiet_at_start"] is False

"""The order of turns, the limit of time, and what happens when a system fails."""

import threading

import pytest

from tfctr.bench.rounds import Deadline, Turns, measure
from tfctr.bench.systems import System, own_interpreter
from tfctr.bench.worker import WorkerFailed
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

TINY = Workload(num_fields=1, rows_per_field=2, batch_size=1)


class FakeWorker:
    """A system that computes nothing: it writes down what was asked of it."""

    def __init__(self, name, log, optimizers=("adagrad",), fails=None):
        self.system = System(name, "none", own_interpreter())
        self.options = Options({"W": TINY}, optimizers)
        self.versions = {"library": "1.0"}
        self.is_closed = False
        self._log = log
        self._fails = fails or {}
        self._steps = 0

    def start(self, timeout):
        self._say("start")

    def run(self, case, steps, untimed, timeout):
        self._say("run", case.rsplit("/", 1)[1])
        self._steps += steps
        return [float(self._steps)] * steps

    def facts(self, timeout):
        self._say("facts")
        return {"steps": self._steps}

    def close(self):
        self.is_closed = True

    def _say(self, *what):
        self._log.append((self.system.name, *what))
        if what[0] in self._fails:
            raise WorkerFailed(self._fails[what[0]])


def runs(log):
    return [entry[::2] for entry in log if entry[1] == "run"]


def test_systems_take_turns_round_after_round():
    log = []
    workers = [FakeWorker("a", log), FakeWorker("b", log)]
    measure(workers, Turns(rounds=3, steps=2), Deadline(60))
    assert runs(log) == [("a", "adagrad"), ("b", "adagrad")] * 3


def test_every_case_has_a_turn_in_every_round():
    log = []
    workers = [FakeWorker("a", log, ("adagrad", "adam")), FakeWorker("b", log)]
    measure(workers, Turns(rounds=2), Deadline(60))
    assert runs(log) == [("a", "adagrad"), ("a", "adam"), ("b", "adagrad")] * 2


def test_samples_of_all_rounds_are_kept_apart_by_system_and_case():
    workers = [FakeWorker("a", [], ("adagrad", "adam")), FakeWorker("b", [])]
    turns = Turns(rounds=2, steps=2, fewer_steps={"b": 1})
    result = measure(workers, turns, Deadline(60))
    assert result.samples == {
        ("a", "sparse/W/adagrad"): [2.0, 2.0, 6.0, 6.0],
        ("a", "sparse/W/adam"): [4.0, 4.0, 8.0, 8.0],
        ("b", "sparse/W/adagrad"): [1.0, 2.0],
    }
    assert result.versions == {"a": {"library": "1.0"}, "b": {"library": "1.0"}}
    assert result.facts == {"a": {"steps": 8}, "b": {"steps": 2}}
    assert result.failures == {}


def test_all_are_set_up_before_the_wait_and_measured_after_it():
    log = []
    workers = [FakeWorker(name, log) for name in "abc"]
    measure(
        workers, Turns(rounds=1), Deadline(60), wait=lambda limit: log.append(("wait",))
    )
    where = log.index(("wait",))
    assert sorted(log[:where]) == [("a", "start"), ("b", "start"), ("c", "start")]
    assert runs(log[where + 1 :]) == [(name, "adagrad") for name in "abc"]


def test_first_is_set_up_alone_and_the_others_two_at_a_time():
    running, most, lock = [0], [0], threading.Lock()
    started = threading.Barrier(2, timeout=10)

    class SlowWorker(FakeWorker):
        def start(self, timeout):
            with lock:
                running[0] += 1
                most[0] = max(most[0], running[0])
            if self.system.name != "a":
                started.wait()
            with lock:
                running[0] -= 1

    workers = [SlowWorker(name, []) for name in "abcde"]
    measure(workers, Turns(rounds=1), Deadline(60), at_once=2)
    assert most[0] == 2


def test_system_that_cannot_start_is_named_and_the_others_are_measured():
    log = []
    broken = FakeWorker("a", log, fails={"start": "no such library"})
    result = measure([broken, FakeWorker("b", log)], Turns(rounds=2), Deadline(60))
    assert result.failures == {"a": "no such library"}
    assert runs(log) == [("b", "adagrad")] * 2
    assert set(result.facts) == {"b"}


def test_system_for_which_no_time_is_left_is_named_and_never_started():
    log = []
    workers = [FakeWorker("a", []), FakeWorker("b", log)]
    result = measure(workers, Turns(rounds=1), Deadline(0.0, clock=lambda: 0.0))
    assert result.failures == {"b": "No time was left to set it up."}
    assert log == []


def test_system_that_dies_in_its_turn_is_left_out_of_the_next_rounds():
    log = []
    broken = FakeWorker("a", log, ("adagrad", "adam"), fails={"run": "out of memory"})
    result = measure([broken, FakeWorker("b", log)], Turns(rounds=2), Deadline(60))
    assert result.failures == {"a": "out of memory"}
    assert runs(log) == [("a", "adagrad"), ("b", "adagrad"), ("b", "adagrad")]


def test_system_without_facts_is_named():
    broken = FakeWorker("a", [], fails={"facts": "gone"})
    result = measure([broken], Turns(rounds=1), Deadline(60))
    assert result.failures == {"a": "gone"}


def test_workers_are_closed_whatever_happens():
    workers = [FakeWorker("a", []), FakeWorker("b", [])]

    def interrupt(limit):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        measure(workers, Turns(), Deadline(60), wait=interrupt)
    assert all(worker.is_closed for worker in workers)


def test_rounds_that_would_pass_the_deadline_are_left_out():
    now = [0.0]

    class TimedWorker(FakeWorker):
        def run(self, case, steps, untimed, timeout):
            now[0] += 10.0
            return super().run(case, steps, untimed, timeout)

    log = []
    workers = [TimedWorker("a", log)]
    measure(workers, Turns(rounds=100), Deadline(35.0, clock=lambda: now[0]))
    # Three rounds take 30 seconds; a fourth would end after 40.
    assert len(runs(log)) == 3


def test_first_system_is_measured_once_however_late_it_is():
    now = [0.0]
    log = []
    deadline = Deadline(10.0, clock=lambda: now[0])
    now[0] = 99.0
    result = measure([FakeWorker("a", log)], Turns(rounds=5, steps=1), deadline)
    assert result.samples["a", "sparse/W/adagrad"]


def test_workers_are_told_how_long_they_may_take():
    limits = []

    class PatientWorker(FakeWorker):
        def start(self, timeout):
            limits.append(("start", timeout))

        def run(self, case, steps, untimed, timeout):
            limits.append(("run", timeout))
            return [1.0]

    deadline = Deadline(100.0, clock=lambda: 0.0)
    workers = [PatientWorker("a", []), PatientWorker("b", [])]
    measure(workers, Turns(rounds=1), deadline)
    (_, first_start), (_, second_start), (_, first_run), (_, second_run) = limits
    assert 60 < second_start <= 70
    assert 90 < second_run <= 98
    # The first is only stopped if it hangs.
    assert min(first_start, first_run) > 100

"""The conversation with a process, through the real pipes."""

import sys

import pytest

from tfctr.bench import worker as worker_module
from tfctr.bench.systems import Interpreter, System, own_interpreter
from tfctr.bench.worker import Worker, WorkerFailed
from tfctr.bench.workers.options import Options
from tfctr.bench.workload import Workload

OPTIONS = Options({"W": Workload(rows_per_field=7)}, ("adagrad", "adam"), steps=3)

# A launcher in the place of the real one: its worker is a program of a few lines.
LAUNCHER = """
import json, sys, time
sys.path.insert(0, {root!r})
from tfctr.bench.workers import loop
from tfctr.bench.workers.options import Options
channel = loop.Channel.take_stdout()
options = Options.from_json(json.loads(sys.argv[2]))
print("frameworks print all sorts of things")
{body}
"""

STEADY = """
calls = []
steps = {case.name: calls.append for case in options.cases()}
facts = lambda: {"calls": calls, "rows": options.workloads["W"].rows_per_field}
loop.serve(loop.Cases(steps, {"library": "1.2"}, warm_up=2, facts=facts), channel)
"""


@pytest.fixture
def make_worker(tmp_path, monkeypatch):
    made = []

    def make(body, name="peer"):
        path = tmp_path / "launch.py"
        root = str(worker_module.pathlib.Path(worker_module.__file__).parents[2])
        path.write_text(LAUNCHER.format(root=root, body=body))
        monkeypatch.setattr(worker_module, "_LAUNCHER", path)
        made.append(Worker(System(name, "any", own_interpreter()), OPTIONS))
        return made[-1]

    yield make
    for worker in made:
        worker.close()


def test_steps_are_timed_and_go_on_from_where_they_stopped(make_worker):
    worker = make_worker(STEADY)
    worker.start(60)
    assert worker.versions == {"library": "1.2"}
    times = worker.run("sparse/W/adam", steps=3, untimed=1, timeout=60)
    assert len(times) == 3
    assert all(ms >= 0 for ms in times)
    worker.run("sparse/W/adam", steps=1, untimed=0, timeout=60)
    facts = worker.facts(60)
    # Two cases of two warm-up steps; then steps 2 to 5 and 6 of the second.
    assert facts == {"calls": [0, 1, 0, 1, 2, 3, 4, 5, 6], "rows": 7}


def test_worker_that_fails_to_set_up_tells_why(make_worker):
    worker = make_worker(
        "channel.send({'error': 'ImportError: no fbgemm'}); sys.exit('last words')"
    )
    with pytest.raises(WorkerFailed, match="'peer' failed with ImportError: no fbgemm"):
        worker.start(60)
    with pytest.raises(WorkerFailed, match="last words"):
        make_and_start(
            make_worker, "channel.send({'error': ''}); sys.exit('last words')"
        )


def make_and_start(make_worker, body):
    worker = make_worker(body)
    worker.start(60)
    return worker


def test_worker_that_dies_is_told_with_its_last_words(make_worker):
    with pytest.raises(WorkerFailed, match="(?s)'peer' died.*out of luck"):
        make_and_start(make_worker, "sys.exit('out of luck')")


def test_worker_that_dies_in_a_step_is_told(make_worker):
    body = """
def step(i):
    if i == 3:
        sys.exit("step 3 broke")
loop.serve(loop.Cases({"sparse/W/adam": step}, warm_up=2), channel)
"""
    worker = make_and_start(make_worker, body)
    assert len(worker.run("sparse/W/adam", 1, 0, 60)) == 1
    with pytest.raises(WorkerFailed, match="(?s)'peer' died.*step 3 broke"):
        worker.run("sparse/W/adam", 1, 0, 60)
    with pytest.raises(WorkerFailed, match="'peer'"):
        worker.run("sparse/W/adam", 1, 0, 60)


def test_worker_that_does_not_answer_in_time_is_given_up(make_worker):
    worker = make_worker("time.sleep(600)")
    with pytest.raises(WorkerFailed, match="did not answer within 0 seconds"):
        worker.start(0.2)


def test_worker_that_was_never_started_says_so():
    worker = Worker(System("peer", "any", own_interpreter()), OPTIONS)
    with pytest.raises(WorkerFailed, match="'peer' is not running"):
        worker.facts(1)
    worker.close()
    worker.close()


def test_real_launcher_names_a_module_that_is_not_there():
    home = Interpreter(worker_module.pathlib.Path(sys.executable))
    worker = Worker(System("peer", "no_such_worker", home), OPTIONS)
    try:
        with pytest.raises(WorkerFailed, match="ModuleNotFoundError.*no_such_worker"):
            worker.start(60)
    finally:
        worker.close()

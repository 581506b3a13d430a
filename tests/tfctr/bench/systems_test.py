import json
import pathlib
import subprocess
import sys

from tfctr.bench import systems


def test_this_interpreter_is_never_missing():
    assert systems.own_interpreter().missing() is None


def test_first_missing_thing_is_named(tmp_path):
    gone = tmp_path / "gone"
    here = systems.Interpreter(pathlib.Path(sys.executable), needs=("json", gone))
    assert here.missing() == str(gone)
    module = systems.Interpreter(
        pathlib.Path(sys.executable), needs=("no_such_module",)
    )
    assert module.missing() == "no_such_module"


def test_peers_are_missing_until_their_package_has_arrived(tmp_path, monkeypatch):
    monkeypatch.setattr(systems, "ROOT", tmp_path)
    python = tmp_path / ".venv-peers" / "bin" / "python"
    assert systems.fbgemm().interpreter.missing() == str(python)
    python.parent.mkdir(parents=True)
    python.touch()
    missing = systems.fbgemm().interpreter.missing()
    assert missing is not None and missing.endswith("site-packages/fbgemm_gpu")
    pathlib.Path(missing).mkdir(parents=True)
    assert systems.fbgemm().interpreter.missing() is None
    assert systems.fbgemm().interpreter.remedy == "make peers"


def test_ours_are_known_by_their_name_whatever_they_measure():
    for name in ("tfctr", "tfctr_ssd"):
        assert systems.tfctr("train_tfctr", name).is_ours
    assert not systems.rocksdb().is_ours
    assert systems.rocksdb().interpreter.remedy == "make peers"


def test_workers_do_not_inherit_what_changes_python(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    monkeypatch.setenv("OMP_NUM_THREADS", "64")
    env = systems.variables(systems.own_interpreter(), threads=2)
    assert "PYTHONPATH" not in env
    assert env["OMP_NUM_THREADS"] == "2"
    assert env["CUDA_VISIBLE_DEVICES"] == "-1"


def test_peers_get_huge_pages_and_tfctr_runs_as_installed():
    for system in (systems.fbgemm(), systems.keras_embedding(), systems.tfra("tfra")):
        assert "GLIBC_TUNABLES" in system.interpreter.environment
    for system in (systems.tfctr("tfctr_layer"), systems.tfra_growing()):
        assert "GLIBC_TUNABLES" not in system.interpreter.environment


def test_only_tfra_sees_keras_2():
    path = systems.tfra("tfra").interpreter.environment["PYTHONPATH"]
    assert path.endswith("tf_keras")
    assert "PYTHONPATH" not in systems.keras_embedding().interpreter.environment


def test_peers_workers_import_without_tfctr_and_without_tensorflow():
    # What an interpreter of the peers has: the standard library and NumPy.
    program = (
        "import json, sys, pathlib\n"
        "class Refuse:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('tensorflow', 'keras', 'keras_layers',\n"
        "                                  'tfctr_ops'):\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refuse())\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "import launch\n"
        "launch.hide_tfctr()\n"
        "import tfctr.bench.workload\n"
        "from tfctr.bench.workers import deep_fm, loop, memory, new_keys, options\n"
        "print(json.dumps(getattr(sys.modules['tfctr'], '__version__', None)))\n"
    )
    workers = systems.ROOT / "tfctr" / "bench" / "workers"
    done = subprocess.run(
        [sys.executable, "-P", "-c", program, str(workers)],
        capture_output=True,
        check=True,
        text=True,
    )
    assert json.loads(done.stdout) is None

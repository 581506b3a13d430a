"""Guides and handbook run as they stand: a reader may copy them, block by block."""

import contextlib
import doctest
import importlib.util
import io
import json
import os
import pathlib
import re
import runpy
import shlex
import subprocess
import sys
import tomllib

import pytest

from helpers import tfra_models
from tfctr import cli
from tfctr.config import TrainConfig
from tfctr.study import training_run

ROOT = pathlib.Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
GUIDES = sorted(set(DOCS.glob("*.md")) - {DOCS / "index.md"})
HANDBOOK = sorted((DOCS / "handbook").glob("*.md"))
BLOCK = re.compile(
    r"(?P<not_run>^<!-- not run: [^\n]+ -->\n)?"
    r'^```(?P<language>\w+)(?: title="(?P<title>[^"]+)")?\n(?P<text>.*?)^```$',
    re.M | re.S,
)
NEEDS = {
    "horovodrun": "horovod",
    "tensorflow_recommenders_addons": "tensorflow_recommenders_addons",
    "pyarrow": "pyarrow",
}
KERAS_2 = pathlib.Path(sys.prefix) / "tf_keras"
COMPARISON = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


class Reader:
    """Does what a page says, in the current directory.

    Files are saved, Python and commands run, all Python in one namespace. What they
    print must be the "Output" below them, where `...` stands for anything.
    """

    def __init__(self, guide):
        self.guide = guide
        self.names = {"__name__": "guide"}
        self.printed = ""
        self.has_keras_2 = "import tf_keras" in guide.read_text()

    def follow(self, block):
        language, title, text = block["language"], block["title"], block["text"]
        if title == "Output":
            expected = doctest.OutputChecker().check_output(
                text, self.printed, COMPARISON
            )
            assert expected, f"Expected:\n{text}\nPrinted:\n{self.printed}"
        elif title is not None:
            pathlib.Path(title).write_text(text)
        elif language == "toml":
            TrainConfig.from_dict(tomllib.loads(text))
        elif language in ("python", "bash"):
            run = self.python if language == "python" else self.bash
            # Lines are counted as in the file, so that a traceback leads there.
            lines = block.string[: block.start("text")].count("\n")
            with contextlib.redirect_stdout(io.StringIO()) as stream:
                run("\n" * lines + text)
            self.printed = stream.getvalue()

    def python(self, text):
        exec(compile(text, str(self.guide), "exec"), self.names)

    def bash(self, text):
        for line in text.replace("\\\n", " ").splitlines():
            words = shlex.split(line, comments=True)
            # Most run in this process, where TensorFlow has started already.
            if words[:3] == ["python", "-m", "tfctr"]:
                assert cli.main(words[3:]) == 0, line
            elif words[:1] == ["python"] and self.has_keras_2:
                script = {"script": words[1], "arguments": words[2:]}
                command = [
                    sys.executable,
                    tfra_models.__file__,
                    "run_script",
                    json.dumps(script),
                ]
                execute([*command, "printed.json"], KERAS_2)
                print(json.loads(pathlib.Path("printed.json").read_text()))
            elif words[:1] == ["python"]:
                with pytest.MonkeyPatch.context() as patch:
                    patch.setattr(sys, "argv", words[1:])
                    runpy.run_path(words[1], run_name="__main__")
            elif words:
                print(execute(words))


def execute(command, *paths):
    """Returns what a command prints, with our packages and `paths` to import from."""
    done = subprocess.run(
        command,
        env={
            **os.environ,
            "PATH": f"{pathlib.Path(sys.executable).parent}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(map(str, (ROOT, *paths))),
            # Else a rank waits for the start of the others 30 seconds only.
            "HOROVOD_GLOO_TIMEOUT_SECONDS": "120",
        },
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=280,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def code(guide):
    """The text of the blocks that run."""
    blocks = BLOCK.finditer(guide.read_text())
    return "".join(block["text"] for block in blocks if not block["not_run"])


def cases():
    for guide in (*GUIDES, *HANDBOOK):
        several = "horovodrun" in code(guide)
        marks = [pytest.mark.multiprocess] if several else []
        name = guide.relative_to(DOCS).with_suffix("").as_posix()
        yield pytest.param(guide, id=name, marks=marks)


@pytest.fixture
def reader(request, tmp_path, monkeypatch):
    guide = request.param
    for word, package in NEEDS.items():
        if word in code(guide) and importlib.util.find_spec(package) is None:
            pytest.skip(f"this environment has no {package}")
    monkeypatch.chdir(tmp_path)
    # The runs of a study have processes of their own, which start TensorFlow again.
    monkeypatch.setattr(training_run, "train_apart", training_run._train)
    return Reader(guide)


@pytest.mark.parametrize("reader", [*cases()], indirect=True)
def test_a_guide_runs_and_prints_what_it_says(reader):
    text = reader.guide.read_text()
    blocks = list(BLOCK.finditer(text))
    # None is left out because it begins in another way.
    assert blocks and text.count("\n```") == 2 * len(blocks)
    for block in blocks:
        if not block["not_run"]:
            reader.follow(block)

"""Builds the one native library, against the TensorFlow of this environment.

The C++ ABI of TensorFlow changes with each minor version, so the library carries that
version in its name (`tfctr_ops/_tfctr_ops-tf2.16.so`), and one source tree can serve
several environments. Everything that is not about the library is in pyproject.toml.
"""

import os
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from glob import glob
from importlib import metadata
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext
from setuptools.command.egg_info import egg_info
from setuptools.errors import CompileError, LinkError

CXX = os.environ.get("CXX", "g++")
# NDEBUG, because TensorFlow is built with it: the destructor of its reference counter
# otherwise checks what the TensorFlow wheel has compiled away, and aborts.
# No -march: one binary runs on every machine, and hot loops choose at run time.
FLAGS = (
    "-std=c++17 -O3 -fPIC -pthread -DNDEBUG -fno-math-errno -ffp-contract=off "
    "-Wall -Wextra -Werror -I."
).split()
JOBS = 2  # A file that includes TensorFlow takes about one gigabyte to compile.


def tensorflow_minor():
    """Returns "2.16" for any TensorFlow 2.16, and None where there is no TensorFlow."""
    try:
        return ".".join(metadata.version("tensorflow").split(".")[:2])
    except metadata.PackageNotFoundError:
        return None


MINOR = tensorflow_minor()
BUILD = Path(f"build/tf{MINOR}" if MINOR else "build")


def is_current(target, listing, extra):
    """Whether `target` is newer than `extra` and all that its make rule lists."""
    if not (target.exists() and listing.exists()):
        return False
    prerequisites = listing.read_text().replace("\\\n", " ").split(":", 1)[1].split()
    built = target.stat().st_mtime
    return all(
        os.path.exists(path) and os.path.getmtime(path) < built
        for path in [*prerequisites, *extra]
    )


def run(command, error):
    """Runs `command`, which prints its own diagnostics."""
    if subprocess.run(command).returncode != 0:
        raise error(f"this command failed: {' '.join(command)}")


class BuildOps(build_ext):
    """Compiles each source whose inputs changed, and links the library."""

    def build_extension(self, ext):
        if MINOR is None:
            raise CompileError(
                "the native library is built against an installed TensorFlow, and this "
                "environment has none. Install it, then build in the same environment: "
                "pip install tensorflow && pip install --no-build-isolation ."
            )
        import tensorflow as tf  # Slow, and needed only here.

        # A file takes the time at which its build began: an input that is saved while
        # the compiler runs is then newer, and is compiled again.
        start = time.time()
        # As system headers, TensorFlow's may warn without failing the build.
        flags = [
            *FLAGS,
            *(
                flag.replace("-I", "-isystem", 1) if flag.startswith("-I") else flag
                for flag in tf.sysconfig.get_compile_flags()
            ),
        ]
        inputs = [__file__, tf.__file__]

        def compile_source(source):
            target = (BUILD / "objects" / source).with_suffix(".o")
            listing = target.with_suffix(".d")
            if not is_current(target, listing, inputs):
                print(f"Compiling {source} for TensorFlow {tf.__version__}", flush=True)
                target.parent.mkdir(parents=True, exist_ok=True)
                partial = target.with_suffix(".partial")
                rules = ["-MMD", "-MF", str(listing)]
                command = [CXX, *flags, *rules, "-c", source, "-o", str(partial)]
                run(command, CompileError)
                os.utime(partial, (start, start))
                partial.replace(target)
            return str(target)

        with ThreadPoolExecutor(JOBS) as pool:
            objects = list(pool.map(compile_source, ext.sources))
        library = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(library), exist_ok=True)
        shared = [CXX, "-shared", "-pthread", *objects, "-o", library]
        run([*shared, *tf.sysconfig.get_link_flags()], LinkError)
        os.utime(library, (start, start))

    def get_ext_filename(self, fullname):
        # A plain library that TensorFlow loads, not a Python module.
        return f"{fullname.replace('.', '/')}-tf{MINOR}.so"


class DescribePackage(egg_info):
    """Declares, in version and requirements, the TensorFlow that the library needs."""

    def finalize_options(self):
        if MINOR is not None:
            self.tag_build = f"+tf{MINOR}"
            package = self.distribution
            package.install_requires = package.metadata.install_requires = [
                f"tensorflow~={MINOR}.0" if name.startswith("tensorflow") else name
                for name in package.install_requires
            ]
        super().finalize_options()


class BuildWheel(bdist_wheel):
    """Tags the wheel for its platform and for every Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


setup(
    ext_modules=[
        Extension(
            "tfctr_ops._tfctr_ops",
            sources=[
                source
                for folder in ("store", "kernels", "ops")
                for source in sorted(
                    glob(f"tfctr_ops/cc/{folder}/**/*.cc", recursive=True)
                )
            ],
            depends=sorted(glob("tfctr_ops/cc/**/*.h", recursive=True)),
        )
    ],
    cmdclass={
        "bdist_wheel": BuildWheel,
        "build_ext": BuildOps,
        "egg_info": DescribePackage,
    },
    # Apart for each TensorFlow, or a wheel would pick up the library of the other.
    options={"build": {"build_base": str(BUILD)}},
)

#!/usr/bin/env bash
# Makes one environment ready, and the native library in it:
#
#   bash tools/setup.sh .venv pinned
#
# The second argument names the extra of pyproject.toml that fixes the versions. What is
# ready already is left alone, so running this again takes a fraction of a second.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

environment=$1
extra=$2
cxx=${CXX:-g++}
stamp=$environment/.tfctr-setup
site=$environment/lib/python3.11/site-packages

fail() {
  echo "make setup: $*" >&2
  exit 1
}

# Installs Debian packages, or says how to.
install_system() {
  if ! command -v apt-get > /dev/null; then
    fail "missing on this machine: $*. These are the Debian names: install the" \
      "packages of your system that hold the same, then run make again."
  elif [[ $(id -u) != 0 ]]; then
    fail "missing on this machine: $*. Install with:" \
      "sudo apt-get update && sudo apt-get install --yes $*"
  fi
  echo "Installing system packages: $*"
  apt-get update --quiet=2
  DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 \
    --no-install-recommends "$@" > /dev/null
}

# Prints a Python 3.11. Each candidate is run: a pyenv shim may exist and lead nowhere.
find_python() {
  local candidate
  for candidate in "${PYTHON:-python3.11}" python3.11 python3 \
    "${PYENV_ROOT:-$HOME/.pyenv}"/versions/3.11.*/bin/python3.11; do
    if "$candidate" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' \
      2> /dev/null; then
      echo "$candidate"
      return
    fi
  done
  return 1
}

make_environment() {
  local python
  if ! python=$(find_python); then
    if command -v apt-cache > /dev/null && [[ -n $(apt-cache search '^python3\.11$') ]]
    then
      install_system python3.11 python3.11-venv
    fi
    python=$(find_python) || fail "Python 3.11 is needed, since TFRA has no wheel" \
      "for a newer one. Not found: python3.11, python3 of that version," \
      "~/.pyenv/versions/3.11.*. Install it, for example with" \
      "\`sudo apt-get install python3.11 python3.11-venv\` or \`pyenv install 3.11\`," \
      "or name one: make setup PYTHON=path/to/python3.11"
  fi
  if ! "$python" -c 'import ensurepip, venv' 2> /dev/null; then
    install_system python3.11-venv
  fi
  echo "Making $environment with $("$python" --version)"
  "$python" -m venv --clear "$environment"
}

install_packages() {
  local python=$environment/bin/python
  "$python" -c 'import pip, sys; sys.exit(sys.version_info[:2] != (3, 11))' \
    2> /dev/null || make_environment
  echo "Installing the packages of '$extra' into $environment (minutes, the first time)"
  "$python" tools/requirements.py "$extra" dev > "build/requirements-$extra.txt"
  pip install --requirement "build/requirements-$extra.txt"
  if [[ $extra == pinned ]]; then
    "$python" tools/requirements.py --group tf-keras > build/requirements-tf-keras.txt
    pip install --requirement build/requirements-tf-keras.txt \
      --no-deps --upgrade --target "$environment/tf_keras"
    install_horovod
  fi
  pwd > "$site/tfctr.pth"  # The packages are imported from this tree.
  # The command that comes with a wheel.
  printf '#!/bin/sh\nexec "$(dirname "$0")/python" -m tfctr "$@"\n' \
    > "$environment/bin/tfctr"
  chmod +x "$environment/bin/tfctr"
}

# Builds Horovod with Gloo, which needs no MPI, unless it was built on this machine before
# for the same TensorFlow.
install_horovod() {
  local python=$environment/bin/python switches cache draft source wheel
  switches=(HOROVOD_WITH_TENSORFLOW=1 HOROVOD_WITH_GLOO=1 HOROVOD_WITHOUT_MPI=1
    HOROVOD_WITHOUT_PYTORCH=1 HOROVOD_WITHOUT_MXNET=1)
  "$python" tools/requirements.py --group horovod > build/requirements-horovod.txt
  "$python" tools/requirements.py --group horovod-build > build/requirements-cmake.txt
  cache=$({
    cat build/requirements-{horovod,cmake}.txt
    declare -f mend_horovod
    echo "${switches[@]}" && uname -m && "$cxx" --version
    "$python" -m pip freeze | grep --ignore-case '^tensorflow=='
  } | sha256sum | cut -c1-16)
  cache=${XDG_CACHE_HOME:-$HOME/.cache}/tfctr/horovod-$cache
  if ! compgen -G "$cache/*.whl" > /dev/null; then
    command -v "$cxx" > /dev/null || install_system g++
    echo "Building Horovod (about three minutes, once on this machine)"
    pip install --requirement build/requirements-cmake.txt
    mkdir -p "$(dirname "$cache")"
    draft=$(mktemp -d "$cache.XXXXXX")
    source=$(mktemp -d)
    pip download --no-deps --no-build-isolation --no-binary horovod --dest "$source" \
      --requirement build/requirements-horovod.txt
    tar --extract --gzip --file "$source"/*.tar.gz --directory "$source" \
      --strip-components 1
    mend_horovod "$source/horovod/common/gloo"
    env PATH="$(realpath "$environment/bin"):$PATH" "${switches[@]}" MAKEFLAGS=-j2 \
      "$python" -m pip --disable-pip-version-check --quiet wheel --no-deps \
      --no-build-isolation --no-cache-dir --wheel-dir "$draft" "$source"
    rm -rf "$source" "$cache" && mv "$draft" "$cache"
  fi
  wheel=("$cache"/*.whl)
  pip install --force-reinstall --no-deps "${wheel[0]}"
  pip install "${wheel[0]}"  # What it needs.
}

# Mends what Horovod 0.28.1 does wrong under Gloo. It never finds a rank that stalls,
# since it holds the list of ranks for empty: a job with such a rank waits for good. And
# it connects the hosts by whatever address a host's name has for itself, often that of
# the loopback, instead of the network interface that they have agreed on.
mend_horovod() {
  local controller=$1/gloo_controller.cc context=$1/gloo_context.cc
  sed --in-place 's/global_ranks_\.reserve(size_)/global_ranks_.resize(size_)/' \
    "$controller"
  sed --in-place '/::InitializeForProcessSet(/,/CreateDevice(/ {
    s/\.iface = gloo_iface_;/.iface = global_context.gloo_iface_;/
  }' "$context"
  grep --quiet 'global_ranks_\.resize(size_)' "$controller" \
    && grep --quiet 'iface = global_context\.gloo_iface_;' "$context" \
    || fail "the source of Horovod is not as expected: see mend_horovod"
}

pip() {
  "$environment/bin/python" -m pip --disable-pip-version-check --quiet "$@"
}

# Succeeds if the library is missing or older than something it is built from. Folders
# count, since their time tells of a source that was removed.
library_is_stale() {
  local version=("$site"/tensorflow-[0-9]*.dist-info)
  version=$(basename "${version[0]}" | cut -d- -f2 | cut -d. -f1,2)
  local library=tfctr_ops/_tfctr_ops-tf$version.so
  [[ ! -e $library ]] || [[ -n $(
    find tfctr_ops/cc/{store,kernels,ops} setup.py "$site/tensorflow/__init__.py" \
      \( -type d -o -name '*.cc' -o -name '*.h' -o -name '*.py' \) -newer "$library"
  ) ]]
}

mkdir -p build
exec 9> build/setup.lock
if command -v flock > /dev/null; then
  # Two of these at once would install into one environment.
  flock --nonblock 9 || { echo "Waiting for another make setup" && flock 9; }
fi

key=$({ pwd && cat pyproject.toml tools/setup.sh tools/requirements.py; } | sha256sum)
if [[ ! -x $environment/bin/python || $(cat "$stamp" 2> /dev/null) != "$key" ]]; then
  install_packages
  echo "$key" > "$stamp"
fi
if library_is_stale; then
  command -v "$cxx" > /dev/null || install_system g++
  "$environment/bin/python" setup.py --quiet build_ext --inplace
fi

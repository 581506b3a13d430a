#!/usr/bin/env bash
# Makes the environments of the systems that benchmarks compare with:
#
#   .venv-peers          CPU builds of PyTorch, FBGEMM and TorchRec
#   .venv-peers-tf       DeepCTR and the TensorFlow it needs
#   .venv-peers-rocksdb  RocksDB
#
# What is ready already is left alone, so running this again takes no time.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

python=${PYTHON:-.venv/bin/python}
lists=benchmarks

fail() {
  echo "make peers: $*" >&2
  exit 1
}

# Prints what an environment depends on: its place, its lists, this file.
key_of() {
  { pwd && cat "${@/#/$lists/}" tools/make_peers.sh; } | sha256sum
}

is_ready() {  # is_ready ENVIRONMENT LIST...
  local environment=$1
  shift
  [[ -x $environment/bin/python ]] &&
    [[ $(cat "$environment/.tfctr-peers" 2> /dev/null) == "$(key_of "$@")" ]]
}

make_environment() {  # make_environment ENVIRONMENT
  echo "Making $1 (minutes)"
  "$python" -m venv --clear "$1" || fail "$python cannot make $1. Run \`make setup\`" \
    "first, or name another Python 3.11: make peers PYTHON=path/to/python3.11"
}

install() {  # install ENVIRONMENT ARGUMENT...
  local environment=$1
  shift
  "$environment/bin/python" -m pip --disable-pip-version-check --quiet install "$@"
}

mkdir -p build
exec 9> build/peers.lock
if command -v flock > /dev/null; then
  # Two of these at once would install into one environment.
  flock --nonblock 9 || { echo "Waiting for another make peers" && flock 9; }
fi

if ! is_ready .venv-peers-rocksdb peers-rocksdb.txt; then
  make_environment .venv-peers-rocksdb
  install .venv-peers-rocksdb --requirement $lists/peers-rocksdb.txt
  key_of peers-rocksdb.txt > .venv-peers-rocksdb/.tfctr-peers
fi

torch_lists=(peers-torch.txt peers-torchrec.txt)
if ! is_ready .venv-peers "${torch_lists[@]}"; then
  make_environment .venv-peers
  install .venv-peers --requirement $lists/peers-torch.txt ||
    fail "PyTorch's CPU build is not in pip's package index. Name a place that has it," \
      "such as PyTorch's own index of CPU wheels, in the environment variable" \
      "PIP_EXTRA_INDEX_URL or PIP_FIND_LINKS, and run this again."
  install .venv-peers --no-deps --requirement $lists/peers-torchrec.txt
  # A CUDA build would run, but carry libraries that no one asked for.
  .venv-peers/bin/python -c \
    'import sys, torch, fbgemm_gpu, torchrec; sys.exit(torch.version.cuda is not None)' ||
    fail "what was installed into .venv-peers does not load, or is no CPU build of" \
      "PyTorch. Remove .venv-peers, then see $lists/peers-torch.txt."
  key_of "${torch_lists[@]}" > .venv-peers/.tfctr-peers
fi

if ! is_ready .venv-peers-tf peers-tensorflow.txt; then
  make_environment .venv-peers-tf
  install .venv-peers-tf --requirement $lists/peers-tensorflow.txt
  key_of peers-tensorflow.txt > .venv-peers-tf/.tfctr-peers
fi

echo "The peers are ready: .venv-peers, .venv-peers-tf, .venv-peers-rocksdb"

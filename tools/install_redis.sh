#!/usr/bin/env bash
# Installs the server that the tests of tables in Redis need
# (tests/keras_layers/storage/conftest.py) where that disturbs nobody: as root of a
# container. Elsewhere they are skipped, and say what to install. With systemd, Debian
# would start the server at once.
set -euo pipefail

if ! command -v redis-server > /dev/null && [[ $(id -u) == 0 ]] \
  && [[ ! -d /run/systemd/system ]] && command -v apt-get > /dev/null; then
  echo "Installing system packages: redis-server"
  {
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 \
      --no-install-recommends redis-server
  } > /dev/null || echo "Not installed: the tests of tables in Redis will be skipped."
fi

#!/usr/bin/env bash
# Installs the program that the tests of machines compare with
# (tests/tfctr/topology/hwloc_test.py) where that disturbs nobody: as root of a container.
# Elsewhere they are skipped, and say what to install.
set -euo pipefail

if ! command -v lstopo-no-graphics > /dev/null && [[ $(id -u) == 0 ]] \
  && [[ ! -d /run/systemd/system ]] && command -v apt-get > /dev/null; then
  echo "Installing system packages: hwloc"
  {
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 \
      --no-install-recommends hwloc
  } > /dev/null || echo "Not installed: the tests beside lstopo will be skipped."
fi

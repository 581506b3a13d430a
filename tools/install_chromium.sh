#!/usr/bin/env bash
# Installs the browser in which a test opens the page of a training
# (tests/tfctr/report/page_in_browser_test.py) where that disturbs nobody: as root of a
# container. Elsewhere it is skipped, and says what to install.
set -euo pipefail

if ! command -v chromium > /dev/null && [[ $(id -u) == 0 ]] \
  && [[ ! -d /run/systemd/system ]] && command -v apt-get > /dev/null; then
  echo "Installing system packages: chromium"
  {
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 \
      --no-install-recommends chromium
  } > /dev/null || echo "Not installed: the test in a browser will be skipped."
fi

#!/usr/bin/env bash
# Installs what the test over two hosts needs (tests/tfctr/distributed/two_hosts_test.py)
# where that disturbs nobody: as root of a container. Elsewhere the test is skipped, and
# says what to install. With systemd, Debian would start the server at once.
set -euo pipefail

PATH=$PATH:/usr/sbin:/sbin
for program in ip ssh ssh-keygen sshd; do
  command -v "$program" > /dev/null || missing=yes
done
if [[ ${missing:-} && $(id -u) == 0 && ! -d /run/systemd/system ]] \
  && command -v apt-get > /dev/null; then
  packages=(iproute2 openssh-client openssh-server)
  echo "Installing system packages: ${packages[*]}"
  {
    apt-get update --quiet=2
    DEBIAN_FRONTEND=noninteractive apt-get install --yes --quiet=2 \
      --no-install-recommends "${packages[@]}"
  } > /dev/null || echo "Not installed: the test over two hosts will be skipped."
fi

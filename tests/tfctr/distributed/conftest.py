"""What tests of ranks share: a job of two ranks, and two hosts on this machine.

The hosts are network namespaces, joined by a cable, with sshd in each. Everything lives
in namespaces that have no names and hang on one process each, which ends with the test,
even if that is killed. Then the kernel removes the rest: processes, network, mounts.
Nothing of the machine's own network, mounts and ssh is touched.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import shutil
import subprocess

import psutil
import pytest

ADDRESSES = ("10.213.7.1", "10.213.7.2")
PROGRAMS = {
    "ip": "iproute2",
    "nsenter": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "sshd": "openssh-server",
    "unshare": "util-linux",
}
# Where Debian has what only root runs; a user's PATH may leave it out.
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"

# The first process of a host. /run is where sshd wants a folder of its own; it goes to
# the background before it listens, on port 0x16. The input ends with the test, and then
# so does the host; till then its first process buries what others leave.
_BOOT = """
ip link set lo up
mount -t tmpfs none /run
mkdir -m 755 /run/sshd
"$(command -v sshd)" -f "$1" -E "$2"
timeout 60 sh -c 'until grep -q :0016 /proc/net/tcp; do sleep 0.01; done'
echo up
exec 3<&0
cat <&3 > /dev/null &
wait
"""
_SSHD_CONFIG = """
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
PermitRootLogin prohibit-password
"""
_SSH_CONFIG = """
Host *
  User root
  IdentityFile {folder}/key
  IdentitiesOnly yes
  UserKnownHostsFile {folder}/known_hosts
  GlobalKnownHostsFile /dev/null
  LogLevel ERROR
"""
# For horovodrun, which runs the `ssh` that it finds.
_SSH = """#!/bin/sh
exec {ssh} -F {folder}/ssh_config "$@"
"""

# Of one job of two ranks: to start one takes longer than what they ask of it.
TABLE_FILES = ("tables_test.py", "saved_tables_test.py")


def scenarios_of_tables(directory):
    """What `scenarios` of each of the files finds on a rank."""
    found = {}
    for name in TABLE_FILES:
        path = pathlib.Path(__file__).with_name(name)
        spec = importlib.util.spec_from_file_location(path.stem, path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found[name] = module.scenarios(directory)
    return found


@pytest.fixture(scope="package")
def tables_directory(tmp_path_factory):
    """Where the job leaves its files."""
    return tmp_path_factory.mktemp("tables")


@pytest.fixture(scope="package")
def tables_of_ranks(run_ranks, tables_directory):
    """Returns what `scenarios` of a test file has found on each of two ranks."""
    found = run_ranks(2, __file__, "scenarios_of_tables", str(tables_directory))
    return lambda file: [of_rank[pathlib.Path(file).name] for of_rank in found]


@pytest.fixture(scope="module")
def two_hosts(tmp_path_factory):
    """`run_ranks(2, ..., hosts=two_hosts)` runs a rank on each."""
    reason = _why_not()
    if reason:
        pytest.skip(f"two hosts cannot be made here: {reason}.")
    with TwoHosts(tmp_path_factory.mktemp("hosts")) as hosts:
        yield hosts


def _why_not():
    missing = {PROGRAMS[name] for name in PROGRAMS if not _which(name)}
    if missing:
        return f"install {' '.join(sorted(missing))}, as `make test` does in containers"
    if os.geteuid() != 0:
        return "only root may make hosts out of namespaces"
    try_out = subprocess.run(
        [*_unshare(), "mount", "-t", "tmpfs", "none", "/run"],
        capture_output=True,
        text=True,
        env={**os.environ, "PATH": _PATH},
    )
    if try_out.returncode != 0:
        return f"namespaces are not allowed here: {try_out.stderr.strip()}"
    return None


class TwoHosts:
    """Starts and ends two hosts. `folder` gets keys, settings and logs."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self._hosts = []

    def __enter__(self):
        try:
            self._write_settings()
            for index in range(2):
                self._hosts.append(self._boot(index))
            self._join()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *error):
        for host in self._hosts:
            # With --kill-child, this ends the first process, and so all of the host's.
            host.kill()
            host.wait()
            host.stdin.close()
            host.stdout.close()

    @property
    def options(self):
        """How horovodrun is told to start a rank on each."""
        return ["-H", ",".join(f"{address}:1" for address in ADDRESSES)]

    @property
    def env(self):
        """The environment in which its `ssh` finds the keys."""
        return {**os.environ, "PATH": f"{self.folder}:{_PATH}"}

    def on(self, index, *command):
        """Returns the command that runs `command` on the host."""
        enter = ["nsenter", "--target", str(self._first_process(index))]
        return [*enter, "--net", "--mount", "--pid", f"--wd={os.getcwd()}", *command]

    def run(self, index, *command):
        """Runs a command on the host, and returns what it prints."""
        done = subprocess.run(
            self.on(index, *command), capture_output=True, text=True, env=self.env
        )
        assert done.returncode == 0, f"{command}: {done.stderr}{self.logs()}"
        return done.stdout

    def bytes_sent(self, index):
        """Returns how many bytes have left the host by the cable."""
        (link,) = json.loads(
            self.run(index, "ip", "-statistics", "-json", "link", "show", "eth0")
        )
        return link["stats64"]["tx"]["bytes"]

    def processes(self, index):
        """Returns the `psutil.Process`es of the host."""
        own = os.readlink(f"/proc/{self._first_process(index)}/ns/pid")
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):  # It has just ended.
                if os.readlink(f"/proc/{process.pid}/ns/pid") == own:
                    found.append(process)
        return found

    def logs(self):
        logs = sorted(self.folder.glob("sshd*.log"))
        return "".join(f"\n{log.name}:\n{log.read_text()}" for log in logs)

    def _write_settings(self):
        for name in ("key", "host_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", name],
                cwd=self.folder,
                check=True,
            )
        for name, text in (("sshd_config", _SSHD_CONFIG), ("ssh_config", _SSH_CONFIG)):
            (self.folder / name).write_text(text.format(folder=self.folder))
        ssh = self.folder / "ssh"
        ssh.write_text(_SSH.format(folder=self.folder, ssh=_which("ssh")))
        ssh.chmod(0o755)

    def _boot(self, index):
        log = self.folder / f"sshd{index}.log"
        settings = self.folder / "sshd_config"
        host = subprocess.Popen(
            [*_unshare(), "sh", "-e", "-c", _BOOT, "boot", settings, log],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=self.env,
        )
        if host.stdout.readline() != b"up\n":
            self._hosts.append(host)
            raise RuntimeError(f"A host does not start.{self.logs()}")
        return host

    def _join(self):
        # Made inside of the first host, whose view of process numbers is its own.
        ip = ["nsenter", f"--net=/proc/{self._first_process(0)}/ns/net", "ip", "link"]
        other = ["peer", "name", "eth0", "netns", str(self._first_process(1))]
        subprocess.run(
            [*ip, "add", "eth0", "type", "veth", *other], check=True, env=self.env
        )
        for index, address in enumerate(ADDRESSES):
            self.run(index, "ip", "address", "add", f"{address}/24", "dev", "eth0")
            self.run(index, "ip", "link", "set", "eth0", "up")

    def _first_process(self, index):
        (process,) = psutil.Process(self._hosts[index].pid).children()
        return process.pid


def _unshare():
    spaces = ["--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc"]
    return ["unshare", *spaces]


def _which(name):
    return shutil.which(name, path=_PATH)

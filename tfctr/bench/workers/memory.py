"""Memory of this process. Only the standard library: peers import this module too."""

import os


def resident_bytes() -> int:
    """Bytes of this process that are in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """The same without pages of files, which are the page cache's to keep or drop."""
    return _status_bytes("RssAnon:")


def peak_resident_bytes() -> int:
    """The most bytes this process ever had in RAM."""
    return _status_bytes("VmHWM:")


def _status_bytes(name: str) -> int:
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith(name):
                return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no line `{name}`.")

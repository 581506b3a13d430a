"""Memory of this process. Only the standard library: peers import this module too."""

import os


def resident_bytes() -> int:
    """Bytes of this process that are in RAM."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def peak_resident_bytes() -> int:
    """The most bytes this process ever had in RAM."""
    with open("/proc/self/status") as file:
        for line in file:
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    raise OSError("/proc/self/status has no line `VmHWM:`.")

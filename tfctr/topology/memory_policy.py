"""From which NUMA nodes the kernel takes the memory of a process."""

import ctypes
import os
import platform
from collections.abc import Sequence

# Numbers of the system call set_mempolicy(2), which the C library does not wrap.
_SYSCALL = {"x86_64": 238, "aarch64": 237, "ppc64le": 261}
MODES = {"prefer": 1, "bind": 2, "interleave": 3}
_WORD_BITS = 8 * ctypes.sizeof(ctypes.c_ulong)


def set_policy(policy: str, nodes: Sequence[int]) -> None:
    """Takes memory from some nodes from now on.

    Holds for this thread, for those that it starts, and for the program that it turns
    into. Memory that is in use stays where it is.

    Args:
        policy: String. `"bind"`, `"prefer"` or `"interleave"`.
        nodes: Integers. The ids of the nodes; of `"prefer"` the first one counts.

    Raises:
        OSError: If the system does not know these policies, or forbids them as
            containers do that lack the capability `SYS_NICE`.
    """
    number = _SYSCALL.get(platform.machine())
    if number is None:
        raise OSError(f"no policies are known on {platform.machine()}")
    chosen = nodes[:1] if policy == "prefer" else nodes
    words = (ctypes.c_ulong * (max(chosen) // _WORD_BITS + 1))()
    for node in chosen:
        words[node // _WORD_BITS] |= 1 << node % _WORD_BITS
    libc = ctypes.CDLL(None, use_errno=True)
    # The kernel takes the last argument as one more than the bits that it reads.
    bits = ctypes.c_ulong(len(words) * _WORD_BITS + 1)
    if libc.syscall(ctypes.c_long(number), MODES[policy], words, bits) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))

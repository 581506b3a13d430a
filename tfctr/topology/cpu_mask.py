"""Sets of CPUs as integers: bit i stands for CPU i. A negative one has no end."""

EVERYTHING = -1


def from_hex(text: str) -> int:
    """Reads the masks of Linux and of hwloc: words of 32 bits, the highest first.

    `00000000,ffffffff` and `0xffffffff,,0x1` are such; an empty word is zero, and a
    first word `0xf...f` stands for all CPUs above those of the other words.
    """
    mask = 0
    for index, word in enumerate(text.strip().split(",")):
        if index == 0 and word == "0xf...f":
            mask = EVERYTHING
        else:
            mask = mask << 32 | int(word.strip() or "0", 16)
    return mask


def from_list(text: str) -> int:
    """Reads the lists of Linux, such as `0-3,8`. An empty text is the empty set."""
    mask = 0
    for part in text.strip().split(","):
        if part.strip():
            first, _, last = part.partition("-")
            mask |= from_range(int(first), int(last or first))
    return mask


def from_range(first: int, last: int) -> int:
    """The CPUs from `first` to `last`, both included."""
    return ((1 << (last + 1 - first)) - 1) << first


def to_cpus(mask: int) -> tuple[int, ...]:
    """The numbers of the CPUs, in order. The set must have an end."""
    digits = bin(mask)[:1:-1]
    return tuple(cpu for cpu, digit in enumerate(digits) if digit == "1")


def to_list(cpus: tuple[int, ...]) -> str:
    """CPUs in order, as Linux lists them: `0-3,8`."""
    runs: list[list[int]] = []
    for cpu in cpus:
        if runs and runs[-1][-1] == cpu - 1:
            runs[-1][1:] = [cpu]
        else:
            runs.append([cpu])
    return ",".join("-".join(str(end) for end in run) for run in runs)


def first(mask: int) -> int:
    """The lowest CPU, or -1 for the empty set."""
    return (mask & -mask).bit_length() - 1


class Nesting:
    """Sets of which any two lie apart or one inside the other.

    The levels of a machine do. Where firmware says otherwise, hwloc believes what was
    read first and leaves out what crosses it; so do we.
    """

    def __init__(self) -> None:
        self._around: dict[int, set[int]] = {}

    def add(self, mask: int) -> bool:
        """Adds a set, unless it crosses one that is in. Says whether it is in now."""
        cpus = to_cpus(mask)
        for other in self._overlapping(cpus):
            if other & mask not in (other, mask):
                return False
        for cpu in cpus:
            self._around.setdefault(cpu, set()).add(mask)
        return True

    def place(self, mask: int, whole: int) -> int:
        """Adds a set and returns it; else the smallest one around it, or `whole`."""
        if self.add(mask):
            return mask
        around = [
            other for other in self._overlapping(to_cpus(mask)) if other & mask == mask
        ]
        return min(around, key=int.bit_count, default=whole)

    def _overlapping(self, cpus: tuple[int, ...]) -> set[int]:
        return set().union(*(self._around.get(cpu, ()) for cpu in cpus))

"""The results as text for the terminal."""

from collections.abc import Sequence
from typing import Any


def columns(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Lines of a table: the first column to the left, the others to the right.

    Example:

    >>> columns(["system", "ms"], [["keras", "52.1"]])
    ['system    ms', 'keras   52.1']
    """
    cells = [list(header), *map(list, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    return [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]


def machine_lines(machine: dict[str, Any]) -> list[str]:
    """The machine in a line, and a warning when others were at work."""
    lines = [
        f"{machine['cpu']}, {machine['cores']} cores, {machine['memory_gb']} GB; "
        f"huge pages: {machine['transparent_huge_pages']}; other processes used "
        f"{machine['other_cpu_share_before']:.0%} of it before and "
        f"{machine['other_cpu_share_during']:.0%} during the run"
    ]
    if not machine["quiet_at_start"]:
        lines.append(
            f"Other processes were still busy after {machine['waited_seconds']:.0f} "
            "seconds of waiting: trust the ratios, not the milliseconds."
        )
    return lines


def absent_lines(absent: Sequence[dict[str, Any]]) -> list[str]:
    """A line for each system that was not measured, or not to the end."""
    lines = []
    for entry in absent:
        line = (
            f"Not fully measured: {entry['system']}. {entry['reason'].splitlines()[0]}"
        )
        if entry["remedy"] is not None:
            line += f" Run `{entry['remedy']}` to get it."
        lines.append(line)
    return lines


def ratio_lines(
    ratios: dict[str, float], intervals: dict[str, Sequence[float]]
) -> list[str]:
    """The ratios with their intervals."""
    rows = [
        [name, f"{value:.3f}", "{:.3f} to {:.3f}".format(*intervals[name])]
        for name, value in ratios.items()
    ]
    return columns(["ratio", "value", "90 % interval"], rows)


def page(result: dict[str, Any], *parts: Sequence[str]) -> str:
    """The whole text: the parts, the machine, and who was absent."""
    ending = [*machine_lines(result["machine"]), *absent_lines(result["absent"])]
    return "\n\n".join("\n".join(part) for part in [*parts, ending] if part)

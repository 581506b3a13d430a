"""A machine as a drawing, with its ranks, links and routes."""

from xml.etree import ElementTree

from tfctr.topology.cpu_mask import to_list
from tfctr.topology.machine import Gpu, Machine, Nic, NumaNode, Nvme
from tfctr.topology.rank_plan import Plan, RankPlan
from tfctr.topology.routes import SWITCH, links, place_of, routes

_COLORS = ("#a9c4de", "#f6b8be", "#a3cfa9", "#e8dfa6", "#bfe8f6", "#dcaec6", "#d9d9d9")
# A box is so wide, columns and boxes are so far from each other, a line is so high.
_BOX, _GAP, _SPACE, _LINE = 190, 80, 20, 18
_LINK_COLORS = {"nvlink": "#228833", "pcie": "#999999", "memory": "#4477aa"}


def draw(machine: Machine, plan: Plan | None = None) -> str:
    """Draws a machine as SVG: nodes with their ranks and devices, and links.

    Each NUMA node is a column: its ranks, then its devices; devices of no single node
    have a column of their own. Lines are links between devices, thicker where they are
    faster; dashed ones are routes that a GPU relays. The same input gives the same
    bytes.

    Args:
        machine: The machine.
        plan: A plan for it. `None` draws the machine alone.

    Example:

    >>> node = NumaNode(id=0, cpus=(0, 1), memory_bytes=2**30)
    >>> draw(Machine((0, 1), (), (node,)))[:4]
    '<svg'
    """
    return _Drawing(machine, plan).text()


class _Drawing:
    """Boxes with their places; lines between them come beneath."""

    def __init__(self, machine: Machine, plan: Plan | None) -> None:
        self._machine = machine
        self._ranks: tuple[RankPlan, ...] = plan.ranks if plan else ()
        self._centers: dict[str, tuple[int, int]] = {}
        self._svg = ElementTree.Element("svg", xmlns="http://www.w3.org/2000/svg")
        self._lines = ElementTree.SubElement(self._svg, "g", {"class": "links"})
        self._boxes = ElementTree.SubElement(self._svg, "g", {"class": "boxes"})

    def text(self) -> str:
        columns: list[NumaNode | None] = [*self._machine.numa_nodes]
        ends = {end for link in links(self._machine) for end in link.ends}
        self._has_switch = SWITCH in ends
        if self._has_switch or self._devices(None):
            columns.append(None)
        bottom = max(self._column(i, node) for i, node in enumerate(columns))
        width = _SPACE + len(columns) * (_BOX + _GAP)
        self._svg.set("viewBox", f"0 0 {width} {bottom}")
        self._svg.set("font-family", "sans-serif")
        self._svg.set("font-size", "12")
        self._link_lines()
        self._route_lines()
        ElementTree.indent(self._svg)
        return ElementTree.tostring(self._svg, encoding="unicode") + "\n"

    def _devices(self, node_id: int | None) -> list[Gpu | Nic | Nvme]:
        machine = self._machine
        found: list[Gpu | Nic | Nvme] = [*machine.gpus, *machine.nics, *machine.nvme]
        return [device for device in found if device.numa_node == node_id]

    def _column(self, index: int, node: NumaNode | None) -> int:
        x, y = _SPACE + index * (_BOX + _GAP), _SPACE
        if node is not None:
            cpus = f"CPUs {to_list(node.cpus)}" if node.cpus else "no CPUs"
            y = self._box(x, y, [f"NUMA node {node.id}", cpus], "#dddddd")
            self._centers[f"node:{node.id}"] = (x + _BOX // 2, _SPACE + _LINE)
            for rank in self._ranks:
                if rank.numa_node == node.id:
                    y = self._rank(x, y, rank)
        elif self._has_switch:
            y = self._box(x, y, ["NVSwitch", "all of them"], "#ffffff")
            self._centers[SWITCH] = (x + _BOX // 2, _SPACE + _LINE)
        for device in self._devices(node.id if node else None):
            top = y
            y = self._box(x, y, [self._label(device)], self._color(device))
            self._centers[place_of(device)] = (x + _BOX // 2, (top + y - _SPACE) // 2)
        return y

    def _rank(self, x: int, y: int, rank: RankPlan) -> int:
        lines = [f"Rank {rank.local_rank}", f"CPUs {to_list(rank.cpus)}"]
        if rank.gpu is not None:
            lines.append(f"GPU {rank.gpu}")
        color = _COLORS[rank.local_rank % len(_COLORS)]
        return self._box(x, y, lines, color, f"rank-{rank.local_rank}")

    def _label(self, device: Gpu | Nic | Nvme) -> str:
        if isinstance(device, Gpu):
            return f"GPU {device.id} {device.name}".strip()
        return f"{'NIC' if isinstance(device, Nic) else 'NVMe'} {device.name}"

    def _color(self, device: Gpu | Nic | Nvme) -> str:
        """That of the first rank that uses it."""
        for rank in self._ranks:
            used = (
                rank.gpu == device.id
                if isinstance(device, Gpu)
                else device.name in (rank.nic, rank.nvme)
            )
            if used:
                return _COLORS[rank.local_rank % len(_COLORS)]
        return "#ffffff"

    def _box(self, x: int, y: int, lines: list[str], color: str, name: str = "") -> int:
        """Returns where the next box begins."""
        height = _LINE * len(lines) + 8
        group = ElementTree.SubElement(self._boxes, "g")
        if name:
            group.set("id", name)
        place = {"x": f"{x}", "y": f"{y}", "width": f"{_BOX}", "height": f"{height}"}
        style = {"fill": color, "stroke": "#333333", "rx": "4"}
        rect = ElementTree.SubElement(group, "rect", {**place, **style})
        ElementTree.SubElement(rect, "title").text = " ".join(lines)
        for index, line in enumerate(lines):
            at = {"x": f"{x + 8}", "y": f"{y + _LINE * (index + 1)}"}
            # What is longer than the box is in its title.
            short = line if len(line) <= 26 else f"{line[:25]}…"
            ElementTree.SubElement(group, "text", at).text = short
        return y + height + _SPACE

    def _link_lines(self) -> None:
        for link in links(self._machine):
            if all(end in self._centers for end in link.ends):
                speed = link.bytes_per_second / 10**9
                title = f"{link.ends[0]} - {link.ends[1]}: {link.kind}, {speed:g} GB/s"
                width = f"{1 + min(speed / 25, 3):.3g}"
                self._line(link.ends, title, _LINK_COLORS[link.kind], width)

    def _route_lines(self) -> None:
        for route in routes(self._machine):
            if route.relays:
                stops = (route.source, *route.relays, route.target)
                title = "route " + " -> ".join(f"GPU {stop}" for stop in stops)
                ends = (f"gpu:{route.source}", f"gpu:{route.target}")
                self._line(ends, title, "#ee6677", "1", "4 4")

    def _line(
        self, ends: tuple[str, str], title: str, color: str, width: str, dash: str = ""
    ) -> None:
        """From side to side; an arc right of the boxes that stand in one column."""
        (x, y), (to_x, to_y) = sorted(self._centers[end] for end in ends)
        x += _BOX // 2
        to_x += _BOX // 2 if to_x + _BOX // 2 == x else -_BOX // 2
        # An arc reaches half as far as the point that bends it.
        bend = min(24 + abs(to_y - y) // 5, 2 * _GAP) if x == to_x else 0
        way = f"M {x} {y} Q {(x + to_x) // 2 + bend} {(y + to_y) // 2} {to_x} {to_y}"
        style = {"d": way, "fill": "none", "stroke": color, "stroke-width": width}
        if dash:
            style["stroke-dasharray"] = dash
        line = ElementTree.SubElement(self._lines, "path", style)
        ElementTree.SubElement(line, "title").text = title

"""What the machine is, and where each rank goes."""

from tfctr.topology.explanation import explain
from tfctr.topology.machine import (
    Cache,
    Core,
    Gpu,
    Machine,
    Nic,
    NumaNode,
    NvlinkPeer,
    Nvme,
    Package,
)
from tfctr.topology.pinning import Placement, apply
from tfctr.topology.planner import plan
from tfctr.topology.rank_plan import Plan, RankPlan
from tfctr.topology.routes import Link, Route, links, routes
from tfctr.topology.svg import draw
from tfctr.topology.tree import render

__all__ = [
    "Cache",
    "Core",
    "Gpu",
    "Link",
    "Machine",
    "Nic",
    "NumaNode",
    "Nvme",
    "NvlinkPeer",
    "Package",
    "Placement",
    "Plan",
    "RankPlan",
    "Route",
    "apply",
    "draw",
    "explain",
    "links",
    "plan",
    "render",
    "routes",
]

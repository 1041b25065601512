"""Placement: which node of a topology each operator of a plan runs on."""

from headrace.planner.placement.catalog import TopologyCatalog
from headrace.planner.placement.expansion import Pins, Shards
from headrace.planner.placement.explain import compare_strategies, explain_placement
from headrace.planner.placement.failed import PlacementFailed
from headrace.planner.placement.ifcop import IfcopOptions
from headrace.planner.placement.operators import Costs
from headrace.planner.placement.place import Placement, Strategy, place, try_to_place
from headrace.planner.placement.topology import Topology, TopologyLink, TopologyNode

__all__ = [
    "Costs",
    "IfcopOptions",
    "Pins",
    "Placement",
    "PlacementFailed",
    "Shards",
    "Strategy",
    "Topology",
    "TopologyCatalog",
    "TopologyLink",
    "TopologyNode",
    "compare_strategies",
    "explain_placement",
    "place",
    "try_to_place",
]

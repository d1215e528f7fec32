"""A realm described in a file: read from TOML, compared with a realm, and applied to it."""

from __future__ import annotations

from penstock_tools.topology.applying import apply
from penstock_tools.topology.document import Topology
from penstock_tools.topology.inventory import Found, look, topology_of
from penstock_tools.topology.planning import plan
from penstock_tools.topology.reading import load, parse
from penstock_tools.topology.steps import Immovable, Plan, PlannedStep
from penstock_tools.topology.writing import to_toml

__all__ = [
    "Found",
    "Immovable",
    "Plan",
    "PlannedStep",
    "Topology",
    "apply",
    "load",
    "look",
    "parse",
    "plan",
    "to_toml",
    "topology_of",
]

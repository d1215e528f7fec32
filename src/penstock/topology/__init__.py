"""A realm as a file: what it consists of, read from TOML, compared with a realm, and applied to
it."""

from __future__ import annotations

from penstock.topology.applying import apply
from penstock.topology.document import Topology
from penstock.topology.looking import Found, look, topology_of
from penstock.topology.planning import plan
from penstock.topology.reading import load, parse
from penstock.topology.steps import Immovable, Plan, PlannedStep
from penstock.topology.writing import to_toml

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

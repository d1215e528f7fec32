"""Describes realms in files: loads a description, compares it with a realm, and applies it."""

from __future__ import annotations

from penstock.missing_packages import from_package

with from_package("penstock_tools"):
    from penstock_tools.topology import Found as Found
    from penstock_tools.topology import Immovable as Immovable
    from penstock_tools.topology import Plan as Plan
    from penstock_tools.topology import PlannedStep as PlannedStep
    from penstock_tools.topology import Topology as Topology
    from penstock_tools.topology import apply as apply
    from penstock_tools.topology import load as load
    from penstock_tools.topology import look as look
    from penstock_tools.topology import parse as parse
    from penstock_tools.topology import plan as plan
    from penstock_tools.topology import to_toml as to_toml
    from penstock_tools.topology import topology_of as topology_of

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

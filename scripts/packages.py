"""Read `scripts/packages.toml`: the packages, and which of them has each module of `src/`."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from msgspec import Struct, convert

TABLE = Path(__file__).with_name("packages.toml")


class Package(Struct, forbid_unknown_fields=True):
    """A package, as `scripts/packages.toml` has it."""

    may_import: list[str]
    modules: list[str]
    facades: list[str] = []
    commands: list[str] = []


@cache
def packages() -> Mapping[str, Package]:
    """Return the packages by name, in the order of the table: dependencies first."""
    return convert(tomllib.loads(TABLE.read_text(encoding="utf-8")), dict[str, Package])


@cache
def package_of(module: str) -> str:
    """Return the package with the longest name that fits a module."""
    name = module
    while name:
        for package, entry in packages().items():
            if name in entry.modules:
                return package
        name = name.rpartition(".")[0]
    raise LookupError(f"{module} has no package; name it in scripts/packages.toml")

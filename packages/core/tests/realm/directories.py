"""Directories of a realm and of a node."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_server.bootstrap import rules


def create(directory: Directory, name: str, **attributes: Any) -> None:
    directory.apply(directory.decide_create(name, Definition(**attributes)))


def at_a_node() -> Directory:
    return Directory(replace(rules(), local_to="n2"))

"""Names of local stores, which one node of a cluster has for itself: each name is there once.

A node asks for a name in a record of the register, and the owner of the realm rules: it grants the
name unless a cluster-wide store has it. From the moment it looks the owner makes no store of that
name, and it rules only under its own epoch. A later owner writes its epoch down before it serves:
whoever was the owner before can grant nothing from then on, and whatever it granted is known.

Without I/O: every method gives the record as it is to be written with a compare-and-set.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, Literal

import msgspec
from msgspec.structs import replace

from penstock_cluster.owning.register_records import read_record
from penstock_core.vocabulary.errors import (
    Deposed,
    IllegalState,
    LimitReached,
    NameAlreadyBound,
)
from penstock_core.vocabulary.ports import VersionedRecord

LOCAL_NAMES_KEY: Final = "cluster/local"
LOCAL_NAMES_MAX: Final = 4_000
"""Local stores of all nodes together: their names are one record of the register."""

Ruling = Literal["asked", "granted", "refused"]


class LocalName(msgspec.Struct, frozen=True):
    """A name that a node has, or wants, for a store of its own."""

    node: str
    kind: str
    """``channel`` or ``queue``."""
    asked: str
    """Drawn for each asking, which tells it from any other."""
    ruling: Ruling = "asked"


class LocalNames(msgspec.Struct, frozen=True):
    """All of them, as one record of the register."""

    names: Mapping[str, LocalName] = {}
    epoch: int = 0
    """The newest owner that rules."""
    written_by: str = ""
    """Drawn for each change, which tells it from any other."""

    @property
    def taken(self) -> dict[str, LocalName]:
        """The names that no cluster-wide store may get: those granted, and those asked for."""
        return {name: each for name, each in self.names.items() if each.ruling != "refused"}

    def asking(self, name: str, wanted: LocalName) -> LocalNames:
        """A node asks for a name. Raises ``NameAlreadyBound``, ``LimitReached``."""
        known = self.names.get(name)
        if known is not None and known.ruling != "refused":
            is_there = "is" if known.ruling == "granted" else "is about to be"
            raise NameAlreadyBound(f"{name} {is_there} a local {known.kind} of node {known.node}")
        if known is None and len(self.names) >= LOCAL_NAMES_MAX:
            raise LimitReached(
                f"the nodes of this cluster have {LOCAL_NAMES_MAX} local channels and queues, "
                f"which is the limit; delete one, or make {name} cluster-wide"
            )
        return replace(self, names={**self.names, name: wanted})

    def without(self, name: str, node: str, asked: str = "") -> LocalNames:
        """A node gives a name back; with ``asked``, only if it has it from that asking."""
        known = self.names.get(name)
        if known is None or known.node != node or (asked and known.asked != asked):
            return self
        return replace(self, names={each: of for each, of in self.names.items() if each != name})

    def without_node(self, node: str) -> LocalNames:
        """A node will not come back, and its stores neither."""
        left = {name: each for name, each in self.names.items() if each.node != node}
        return self if len(left) == len(self.names) else replace(self, names=left)

    def begun(self, epoch: int) -> LocalNames:
        """An owner begins to rule. Raises ``Deposed`` when a later one has begun."""
        if self.epoch > epoch:
            raise Deposed(f"epoch {self.epoch} rules over local names, and this is {epoch}")
        return replace(self, epoch=epoch)

    def ruled(self, epoch: int, is_taken: Callable[[str], bool]) -> LocalNames:
        """The owner rules over what was asked: refused is what ``is_taken`` by a cluster-wide
        store. Raises ``Deposed`` when another owner rules."""
        if self.epoch != epoch:
            raise Deposed(f"epoch {self.epoch} rules over local names, and this is {epoch}")
        ruled = {
            name: replace(each, ruling="refused" if is_taken(name) else "granted")
            for name, each in self.names.items()
            if each.ruling == "asked"
        }
        return replace(self, names={**self.names, **ruled}) if ruled else self

    def ruling_for(self, name: str, node: str, asked: str) -> Ruling:
        """What has become of an asking. Raises ``IllegalState`` when it is not there any more."""
        known = self.names.get(name)
        if known is None or (known.node, known.asked) != (node, asked):
            raise IllegalState(f"the name {name} was given back while it was asked for; try again")
        return known.ruling


def local_names_of(record: VersionedRecord | None) -> LocalNames:
    """What a record of the register says. Raises ``Damaged``."""
    if record is None:
        return LocalNames()
    return read_record(LOCAL_NAMES_KEY, record, LocalNames, what="record of local names")

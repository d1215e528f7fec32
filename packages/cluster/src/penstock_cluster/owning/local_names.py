"""Names of local stores, which exist on one node of a cluster only. A name is unique in the
cluster.

A node requests a name in a record of the register, and the owner of the realm rules: it grants the
name unless a cluster-wide store has it. From the moment it reads the request the owner creates no
store of that name, and it rules only under its own epoch. A later owner writes its epoch before it
serves: from then on the earlier owner can grant nothing, and all its grants are known.

This module does no I/O: every method returns the record to be written with a compare-and-set.
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
"""Limit for the local stores of all nodes together: their names share one record of the register.
"""

Ruling = Literal["asked", "granted", "refused"]


class LocalName(msgspec.Struct, frozen=True):
    """A name that a node has, or wants, for a local store."""

    node: str
    kind: str
    """``channel`` or ``queue``."""
    asked: str
    """Random token that identifies this request."""
    ruling: Ruling = "asked"


class LocalNames(msgspec.Struct, frozen=True):
    """All local names of the cluster, as one record of the register."""

    names: Mapping[str, LocalName] = {}
    epoch: int = 0
    """Epoch of the newest owner of the realm that has granted or refused names. Owners of earlier
    epochs must not decide any more."""
    written_by: str = ""
    """Random token that identifies the latest change."""

    @property
    def reserved(self) -> dict[str, LocalName]:
        """Names that no cluster-wide store may get: those granted, and those requested."""
        return {name: local for name, local in self.names.items() if local.ruling != "refused"}

    def with_request(self, name: str, request: LocalName) -> LocalNames:
        """Return the record with a node's request for a name. Raises ``NameAlreadyBound``,
        ``LimitReached``."""
        local = self.names.get(name)
        if local is not None and local.ruling != "refused":
            state = "is" if local.ruling == "granted" else "is about to be"
            raise NameAlreadyBound(f"{name} {state} a local {local.kind} of node {local.node}")
        if local is None and len(self.names) >= LOCAL_NAMES_MAX:
            raise LimitReached(
                f"the nodes of this cluster have {LOCAL_NAMES_MAX} local channels and queues, "
                f"which is the limit; delete one, or make {name} cluster-wide"
            )
        return replace(self, names={**self.names, name: request})

    def without(self, name: str, node: str, asked: str = "") -> LocalNames:
        """Return the record without a node's name. With ``asked``, remove the name only if it comes
        from that request."""
        local = self.names.get(name)
        if local is None or local.node != node or (asked and local.asked != asked):
            return self
        return replace(self, names={key: local for key, local in self.names.items() if key != name})

    def without_node(self, node: str) -> LocalNames:
        """Return the record without the names of a node that will not return."""
        remaining = {name: local for name, local in self.names.items() if local.node != node}
        return self if len(remaining) == len(self.names) else replace(self, names=remaining)

    def with_owner(self, epoch: int) -> LocalNames:
        """Return the record with a new ruling owner. Raises ``Deposed`` if a later owner has
        begun."""
        if self.epoch > epoch:
            raise Deposed(f"epoch {self.epoch} rules on local names; this owner has epoch {epoch}")
        return replace(self, epoch=epoch)

    def with_rulings(self, epoch: int, is_taken: Callable[[str], bool]) -> LocalNames:
        """Return the record with a ruling on each request: refused if ``is_taken`` reports a
        cluster-wide store of that name. Raises ``Deposed`` if another owner rules."""
        if self.epoch != epoch:
            raise Deposed(f"epoch {self.epoch} rules on local names; this owner has epoch {epoch}")
        ruled = {
            name: replace(local, ruling="refused" if is_taken(name) else "granted")
            for name, local in self.names.items()
            if local.ruling == "asked"
        }
        return replace(self, names={**self.names, **ruled}) if ruled else self

    def ruling_for(self, name: str, node: str, asked: str) -> Ruling:
        """Return the ruling on a request. Raises ``IllegalState`` if the request was removed."""
        local = self.names.get(name)
        if local is None or (local.node, local.asked) != (node, asked):
            raise IllegalState(f"the request for the name {name} was removed meanwhile; try again")
        return local.ruling


def local_names_of(record: VersionedRecord | None) -> LocalNames:
    """Decode the record of local names; empty without a record. Raises ``Damaged``."""
    if record is None:
        return LocalNames()
    return read_record(LOCAL_NAMES_KEY, record, LocalNames, description="record of local names")

"""A realm that is being moved into a cluster, as the register tells of it.

The record is written before anything else, and removed last. Who opens the shard of a cluster looks
for it after the fence: a realm that is half there is served by nobody.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_cluster.owning.register_records import read_record
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.ports import Registry, VersionedRecord

ARRIVING_KEY: Final = "cluster/import"


class ArrivingRealm(msgspec.Struct, frozen=True, kw_only=True):
    """An import under way, or one that was broken off."""

    realm: str
    """Identity of the realm."""
    nonce: str
    """Drawn anew by each attempt."""
    epoch: int
    """The epoch in which this attempt writes."""
    at_us: int
    """When it began."""


def arriving_in(record: VersionedRecord | None) -> ArrivingRealm | None:
    """The import that a record tells of."""
    if record is None:
        return None
    return read_record(ARRIVING_KEY, record, ArrivingRealm)


async def refuse_half_a_realm(registry: Registry) -> None:
    """Raise ``IllegalState`` while a realm is only partly there."""
    found = arriving_in(await registry.get(ARRIVING_KEY))
    if found is not None:
        raise IllegalState(
            f"the realm {found.realm} is being imported into this cluster, or its import was "
            f"broken off. No node serves it before that is finished: run `penstock cluster import` "
            f"again, or with --abandon to remove what is there"
        )

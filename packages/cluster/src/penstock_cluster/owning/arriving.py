"""The record of a realm that is being imported into a cluster.

An import writes the record first and removes it last. A node that opens the shard of a cluster
reads the record after fencing, so that no node serves a partly imported realm.
"""

from __future__ import annotations

from typing import Final

import msgspec

from penstock_cluster.owning.register_records import read_record
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.ports import Registry, VersionedRecord

ARRIVING_KEY: Final = "cluster/import"
"""Key of the record in the register; it exists only while an import is unfinished."""


class ArrivingRealm(msgspec.Struct, frozen=True, kw_only=True):
    """An import that is running or was interrupted."""

    realm: str
    """Identity of the realm."""
    nonce: str
    """Random token that identifies the attempt."""
    epoch: int
    """Epoch of this attempt's writes."""
    at_us: int
    """Start of the import, in microseconds since 1970."""


def import_in(record: VersionedRecord | None) -> ArrivingRealm | None:
    """Return the import that a record describes, or None."""
    if record is None:
        return None
    return read_record(ARRIVING_KEY, record, ArrivingRealm)


async def refuse_partial_realm(registry: Registry) -> None:
    """Raise ``IllegalState`` while a realm is only partly imported."""
    arriving = import_in(await registry.get(ARRIVING_KEY))
    if arriving is not None:
        raise IllegalState(
            f"the realm {arriving.realm} is being imported into this cluster, or its import was "
            "interrupted. No node serves it before the import is finished: run `penstock cluster "
            "import` "
            f"again, or with --abandon to remove the imported part"
        )

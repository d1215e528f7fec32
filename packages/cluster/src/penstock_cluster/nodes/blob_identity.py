"""The identity of the file store where a cluster keeps segments and snapshots.

The register names an identity for the blobs of each shard, and a blob of that name is stored among
them. A node that cannot read this blob uses another place: a folder that is not mounted, another
bucket, another setting. The contents of that store are not the realm.

An owner creates the identity once it has recovered the realm from the file store without damage. So
a realm without an identity, such as those of version 0.1.0, gets one, and a wrong place does not.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from hashlib import sha256
from typing import Final

import msgspec

from penstock_cluster.owning.register_records import read_record
from penstock_core.loggers import logger
from penstock_core.tasks import leave_to_owner, start_task
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    NameDoesNotExist,
    StorageFailed,
    Unavailable,
)
from penstock_core.vocabulary.ports import (
    BlobInfo,
    Blobs,
    Buffer,
    Registry,
    StorageEngine,
    VersionedRecord,
)

BLOBS_SETTING: Final = "cluster.blobs"
IDENTITIES: Final = "blobs/"
"""Prefix of the keys of the register that hold the identity of each shard's blobs."""
IDENTITY_BLOBS: Final = "realm/identity-"
"""Prefix of the name of the blob that identifies the file store."""
ANSWER_S: Final = 5.0
"""Seconds within which a file store has to answer."""
_SNAPSHOTS: Final = "snapshots/"

_log = logger("penstock.cluster")


class BlobIdentity(msgspec.Struct, frozen=True):
    """The identity of a shard's blobs, as stored in the register."""

    token: str
    is_written: bool = False
    """Whether the blob was written; an owner may have been killed before it wrote it."""

    @property
    def blob(self) -> str:
        return IDENTITY_BLOBS + self.token


class BlobPlaces:
    """Compares the blobs that a node reads for a shard with the identity in the register."""

    def __init__(self, engine: StorageEngine, registry: Registry, location: str = "") -> None:
        """``location`` is the file store as the settings have it, for messages."""
        self._engine = engine
        self._registry = registry
        self._location = f"the place of {BLOBS_SETTING}" + (f" ({location})" if location else "")
        self._blobs: dict[int, Blobs] = {}
        self._checks: dict[int, asyncio.Task[str]] = {}

    async def failure(self, shard: int) -> str:
        """Return why this node cannot use the blobs of a shard; empty if they are the realm's.

        Raises ``Unavailable`` while the register does not answer.
        """
        check = self._checks.get(shard)
        # One check at a time, because a mount that hangs blocks the thread of its check.
        if check is None or check.done():
            check = start_task(self._failure(shard), name="blobs", on_failure=leave_to_owner)
            self._checks[shard] = check
        try:
            async with asyncio.timeout(ANSWER_S):
                # Shielded: a check that takes longer continues, and the next call waits for it.
                return await asyncio.shield(check)
        except TimeoutError:
            return f"{self._location} has not answered for {ANSWER_S:.0f} s"

    async def open_for_owner(self, shard: int) -> GuardedBlobs:
        """Open the blobs of a shard for its owner. Later checks of the identity use these
        blobs, through which the owner writes, instead of ones opened earlier."""
        blobs = self._blobs[shard] = await self._engine.blobs(shard)
        return GuardedBlobs(blobs, self, shard)

    async def check(self, shard: int) -> None:
        """Raise ``StorageFailed`` unless the blobs of a shard are the realm's."""
        if reason := await self.failure(shard):
            raise StorageFailed(reason)

    async def mark(self, shard: int, token: str) -> None:
        """Give the blobs of a shard an identity: ``token``, unless they have one. The owner calls
        this once it has recovered the realm from them."""
        key = f"{IDENTITIES}{shard}"
        with suppress(Conflict):  # a newer owner writes the identity
            record = await self._registry.get(key)
            identity = _identity_in(key, record)
            if identity is None:
                # The register has the token before the blob exists: if this owner is killed in
                # between, the next one writes the same blob.
                identity = BlobIdentity(token)
                version = await self._registry.cas(key, 0, msgspec.json.encode(identity))
            elif identity.is_written:
                return
            else:
                assert record is not None, "an identity was read from it"
                version = record.version
            try:
                await (await self._open(shard)).put(identity.blob, [identity.token.encode()])
            except StorageFailed as error:  # the next owner tries again
                _log.warning("blobs.not_marked", reason=str(error))
                return
            written = msgspec.structs.replace(identity, is_written=True)
            await self._registry.cas(key, version, msgspec.json.encode(written))

    def stop(self) -> None:
        """Cancel the running checks."""
        for check in self._checks.values():
            check.cancel()

    async def _open(self, shard: int) -> Blobs:
        if shard not in self._blobs:
            self._blobs[shard] = await self._engine.blobs(shard)
        return self._blobs[shard]

    async def _failure(self, shard: int) -> str:
        """Compare the blobs with the register. Return the reason why they cannot be used, or an
        empty text."""
        key = f"{IDENTITIES}{shard}"
        identity = _identity_in(key, await self._registry.get(key))
        blobs = await self._open(shard)
        try:
            if identity is not None and identity.is_written:
                await blobs.get(identity.blob)
                return ""
            # The blob of this realm may exist before the register says so.
            own_identity = None if identity is None else identity.blob
            others = [
                blob.name for blob in await blobs.list(IDENTITY_BLOBS) if blob.name != own_identity
            ]
        except NameDoesNotExist:
            return (
                f"{self._location} is not where the files of this realm are: the identity that the "
                f"register names does not exist there. Mount the folder, or give this node the "
                f"cluster.blobs that the other nodes have"
            )
        except (StorageFailed, Damaged) as error:
            return f"{self._location} cannot be read: {error}"
        if others:
            return (
                f"{self._location} has the files of another realm ({others[0]}). Choose another "
                f"cluster.blobs or another cluster.name; if that realm is gone, remove its files"
            )
        return ""


class GuardedBlobs:
    """The blobs that an owner writes. After each snapshot the file store is compared with the
    register, because a folder may be unmounted at run time: the owner must not truncate its journal
    if the snapshot is in another place."""

    def __init__(self, blobs: Blobs, places: BlobPlaces, shard: int) -> None:
        self.grows: Final = blobs.grows
        self._blobs = blobs
        self._places = places
        self._shard = shard
        self.extend = blobs.extend
        self.get = blobs.get
        self.delete = blobs.delete
        self.local_path: Callable[[str], str | None] = blobs.local_path

    async def put(self, name: str, chunks: Sequence[Buffer]) -> None:
        """Store a blob under a new name (:meth:`penstock_core.vocabulary.ports.Blobs.put`). Raises
        ``StorageFailed`` if a snapshot was written where the realm's files are not."""
        await self._blobs.put(name, chunks)
        if name.startswith(_SNAPSHOTS):
            try:
                await self._places.check(self._shard)
            except Unavailable as error:
                raise StorageFailed(f"{name} may be in another place: {error}") from error

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """Return the blobs whose names begin with ``prefix``, ordered by name
        (:meth:`penstock_core.vocabulary.ports.Blobs.list`)."""
        return await self._blobs.list(prefix)


def token_of(node: str, nonce: str, epoch: int) -> str:
    """Return a name for a realm's blobs that is unique to it, because processes draw random
    nonces."""
    return sha256(f"{node}/{nonce}/{epoch}".encode()).hexdigest()[:16]


def _identity_in(key: str, record: VersionedRecord | None) -> BlobIdentity | None:
    """Decode the identity of blobs; None without a record. Raises ``Damaged``."""
    if record is None:
        return None
    return read_record(key, record, BlobIdentity, description="identity of blobs")

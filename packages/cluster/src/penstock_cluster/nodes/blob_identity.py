"""The identity of the place where a cluster keeps segments and snapshots.

The register names an identity for the blobs of each shard, and a blob of that name lies among them.
A node that does not read it looks at another place: a folder that is not mounted, another bucket,
another setting. What it would recover from there is not the realm.

An owner makes the identity once it has recovered the realm from the place without damage: so a
realm that has none yet, as those of version 0.1.0, gets one, and a place that is not the realm's
does not.
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
"""Begins the keys of the register under which the identity of each shard's blobs is."""
IDENTITY_BLOBS: Final = "realm/identity-"
"""Begins the name of the blob that says whose place this is."""
ANSWER_S: Final = 5.0
"""How long a place may take to answer."""
_SNAPSHOTS: Final = "snapshots/"

_log = logger("penstock.cluster")


class BlobIdentity(msgspec.Struct, frozen=True):
    """The identity of a shard's blobs, as the register has it."""

    token: str
    is_written: bool = False
    """Whether the blob is there: an owner may have been killed before it wrote it."""

    @property
    def blob(self) -> str:
        return IDENTITY_BLOBS + self.token


class BlobPlaces:
    """Compares what a node reads as the blobs of a shard with the identity in the register."""

    def __init__(self, engine: StorageEngine, registry: Registry, shown: str = "") -> None:
        """``shown`` is the place as the settings have it, for messages."""
        self._engine = engine
        self._registry = registry
        self._shown = f"the place of {BLOBS_SETTING}" + (f" ({shown})" if shown else "")
        self._blobs: dict[int, Blobs] = {}
        self._looks: dict[int, asyncio.Task[str]] = {}

    async def failure(self, shard: int) -> str:
        """Why this node cannot use the blobs of a shard; empty: they are the realm's.

        Raises ``Unavailable`` while the register does not answer.
        """
        look = self._looks.get(shard)
        if look is None or look.done():  # a mount that hangs keeps a thread: never more than one
            look = start_task(self._failure(shard), name="blobs", on_failure=leave_to_owner)
            self._looks[shard] = look
        try:
            async with asyncio.timeout(ANSWER_S):
                return await asyncio.shield(look)
        except TimeoutError:
            return f"{self._shown} has not answered for {ANSWER_S:.0f} s"

    async def opened_anew(self, shard: int) -> GuardedBlobs:
        """The blobs of a shard for its owner. What is compared from now on is these, and no others
        that were opened before: they are what the owner writes."""
        blobs = self._blobs[shard] = await self._engine.blobs(shard)
        return GuardedBlobs(blobs, self, shard)

    async def check(self, shard: int) -> None:
        """Raise ``StorageFailed`` unless the blobs of a shard are the realm's."""
        if reason := await self.failure(shard):
            raise StorageFailed(reason)

    async def mark(self, shard: int, token: str) -> None:
        """Give the blobs of a shard an identity, which is ``token`` unless they have one. Called by
        the owner, once it has recovered the realm from them."""
        key = f"{IDENTITIES}{shard}"
        with suppress(Conflict):  # a newer owner does it
            record = await self._registry.get(key)
            identity = _identity_in(key, record)
            if identity is None:
                identity = BlobIdentity(token)
                version = await self._registry.cas(key, 0, msgspec.json.encode(identity))
            elif identity.is_written:
                return
            else:
                assert record is not None, "it was read"
                version = record.version
            try:
                await (await self._of(shard)).put(identity.blob, [identity.token.encode()])
            except StorageFailed as error:  # the next owner tries again
                _log.warning("blobs.not_marked", reason=str(error))
                return
            written = msgspec.structs.replace(identity, is_written=True)
            await self._registry.cas(key, version, msgspec.json.encode(written))

    def stop(self) -> None:
        """End what is still under way."""
        for look in self._looks.values():
            look.cancel()

    async def _of(self, shard: int) -> Blobs:
        if shard not in self._blobs:
            self._blobs[shard] = await self._engine.blobs(shard)
        return self._blobs[shard]

    async def _failure(self, shard: int) -> str:
        key = f"{IDENTITIES}{shard}"
        identity = _identity_in(key, await self._registry.get(key))
        blobs = await self._of(shard)
        try:
            if identity is not None and identity.is_written:
                await blobs.get(identity.blob)
                return ""
            own = None if identity is None else identity.blob
            others = [each.name for each in await blobs.list(IDENTITY_BLOBS) if each.name != own]
        except NameDoesNotExist:
            return (
                f"{self._shown} is not where the files of this realm are: the identity that the "
                f"register names is not there. Mount the folder, or give this node the "
                f"cluster.blobs that the other nodes have"
            )
        except (StorageFailed, Damaged) as error:
            return f"{self._shown} cannot be read: {error}"
        if others:
            return (
                f"{self._shown} has the files of another realm ({others[0]}). Choose another "
                f"cluster.blobs or another cluster.name; if that realm is gone, remove its files"
            )
        return ""


class GuardedBlobs:
    """The blobs of an owner, which notices before it cuts its journal that a snapshot was written
    to another place: a folder may be unmounted while it runs."""

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
        """See :meth:`penstock_core.vocabulary.ports.Blobs.put`. Raises ``StorageFailed`` for a
        snapshot that is not where the realm's files are."""
        await self._blobs.put(name, chunks)
        if name.startswith(_SNAPSHOTS):
            try:
                await self._places.check(self._shard)
            except Unavailable as error:
                raise StorageFailed(f"{name} may be in another place: {error}") from error

    async def list(self, prefix: str = "") -> Sequence[BlobInfo]:
        """See :meth:`penstock_core.vocabulary.ports.Blobs.list`."""
        return await self._blobs.list(prefix)


def token_of(node: str, nonce: str, epoch: int) -> str:
    """A name for the blobs of a realm that no other realm's have: processes draw their nonces."""
    return sha256(f"{node}/{nonce}/{epoch}".encode()).hexdigest()[:16]


def _identity_in(key: str, record: VersionedRecord | None) -> BlobIdentity | None:
    if record is None:
        return None
    return read_record(key, record, BlobIdentity, what="identity of blobs")

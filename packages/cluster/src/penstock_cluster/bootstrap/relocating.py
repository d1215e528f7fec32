"""Move a realm from a data directory into a cluster, and from a cluster into a data directory."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from penstock_cluster.nodes.blob_identity import IDENTITY_BLOBS
from penstock_cluster.owning.arriving import ARRIVING_KEY, ArrivingRealm, import_in
from penstock_cluster.owning.register_records import FORMAT_KEY, SHARDS, ClaimRecord
from penstock_cluster.relocation import OnProgress, Relocation, RelocationPlan
from penstock_core.vocabulary.errors import (
    Conflict,
    Damaged,
    DataDirectoryInUse,
    IllegalState,
    InvalidArgument,
    NameDoesNotExist,
    NewerFormat,
    StorageFailed,
    Trimmed,
    Unavailable,
)
from penstock_core.vocabulary.formats import FORMAT
from penstock_core.vocabulary.node_figures import SHARD
from penstock_core.vocabulary.ports import (
    Blobs,
    Clock,
    Journal,
    Registry,
    StorageEngine,
    VersionedRecord,
)
from penstock_server.bootstrap import IDENTITY_KEY
from penstock_server.bootstrap.directories import absolute, opened
from penstock_server.bootstrap.registries import rules
from penstock_server.runtime.store.file_names import FileNames
from penstock_server.runtime.upkeep.recovery import RecoveredRealm, recover
from penstock_server.storage.disk import PRIVATE_DIRECTORY, Disk, RealDisk
from penstock_server.storage.embedded import Embedded
from penstock_server.storage.embedded.repairing import check_exists
from penstock_server.storage.memory import MemoryPages
from penstock_server.storage.overlay import OverlayDisk

ACCESS: Final = "access/"
"""Prefix of users, groups and rights in the registry of a realm."""
ATTEMPTS_MAX: Final = 20
"""Attempts at a copy, because the cluster may remove files that are about to be copied. Files are
not copied twice."""
PARTIAL: Final = ".partial"
"""Suffix of a directory that an export is still writing."""


class RealmMoved(Struct, frozen=True, kw_only=True):
    """The result of a move, or of its dry run."""

    realm: str
    """Identity of the realm, which it keeps."""
    plan: RelocationPlan
    users: bool
    """Whether users, groups or rights move with it."""
    copied: int = 0
    """Number of files copied ahead."""


class TargetStores(NamedTuple):
    """Stores into which a cluster's realm is written."""

    journal: Journal
    blobs: Blobs
    registry: Registry


class SourceRealm(Struct):
    """A stopped realm, as recovered from its data directory."""

    recovered: RecoveredRealm
    stores: Embedded
    identity: str
    access: Mapping[str, bytes]


@asynccontextmanager
async def source_realm(directory: Path, disk: Disk | None = None) -> AsyncIterator[SourceRealm]:
    """Open a data directory read-only.

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``Damaged``.
    """
    root, disk = absolute(directory), disk or RealDisk()
    check_exists(disk, root)
    try:
        stores = opened(root, OverlayDisk(disk))
    except DataDirectoryInUse as error:
        raise DataDirectoryInUse(
            f"{error}. A realm that runs is imported in two steps: `penstock store backup BACKUP`, "
            f"`penstock cluster import BACKUP --ahead`; then stop it, and import {directory}"
        ) from None
    try:
        recovered = await recover(stores.journal, stores.blobs, stores.pages, rules=rules())
        identity = await stores.registry.get(IDENTITY_KEY)
        if identity is None:
            raise InvalidArgument(f"{directory} has no realm yet: it was never served")
        records = await _records(stores.registry, ACCESS)
        access = {key: record.value for key, record in records.items()}
        yield SourceRealm(recovered, stores, identity.value.decode(), access=access)
    finally:
        await stores.pages.close()
        await stores.journal.close()


# --- into a cluster -----------------------------------------------------------------------


def check_is_free(records: Mapping[str, VersionedRecord], realm: str, cluster: str) -> None:
    """Raise ``IllegalState`` if the register shows a realm in the cluster, or a partly imported
    one; ``NewerFormat`` if a newer version has created the cluster."""
    arriving = import_in(records.get(ARRIVING_KEY))
    if arriving is not None and arriving.realm != realm:
        raise IllegalState(
            f"the import of another realm ({arriving.realm}) into the cluster {cluster!r} was not "
            f"finished: finish it, or remove its remains with --abandon"
        )
    record = records.get(IDENTITY_KEY)
    if arriving is None and (record is not None or f"{SHARDS}{SHARD}" in records):
        shown = "" if record is None else f", {record.value.decode()}"
        raise IllegalState(
            f"the cluster {cluster!r} has a realm already{shown}: a realm is imported where none "
            f"was served before. Choose another name for the cluster (cluster.name)"
        )
    format = records.get(FORMAT_KEY)
    if format is not None and int(format.value) > FORMAT:
        raise NewerFormat(
            f"the cluster writes format {int(format.value)}, and this version of Penstock knows "
            f"{FORMAT}; import with the version that the nodes have"
        )


async def _check_place_is_free(blobs: Blobs) -> None:
    """Raise ``IllegalState`` if the nodes of another cluster use this place of blobs."""
    if foreign_identities := await blobs.list(IDENTITY_BLOBS):
        raise IllegalState(
            f"the place of cluster.blobs has the files of a realm that a cluster has served "
            f"({foreign_identities[0].name}). Choose another cluster.blobs or another "
            "cluster.name; if that "
            f"cluster was given up, remove its files"
        )


def plan_import(source: SourceRealm) -> RealmMoved:
    """Count what an import would move, without moving anything. Raises as :class:`Relocation`
    does."""
    return _extent(source, _relocation(source))


async def import_realm(
    source: SourceRealm,
    engine: StorageEngine,
    clock: Clock,
    cluster: str,
    *,
    ahead: bool = False,
    on_progress: OnProgress = lambda _: None,
) -> RealmMoved:
    """Move a realm into an empty cluster. With ``ahead`` only files that will not change any more
    are moved, and the cluster waits for the rest. Files of an earlier attempt are reused.

    Raises ``IllegalState`` for a cluster that has a realm, ``Damaged``, ``Deposed`` when another
    import has begun meanwhile.
    """
    relocation = _relocation(source)
    registry = await engine.registry()
    check_is_free(await _records(registry), source.identity, cluster)
    blobs = await engine.blobs(SHARD)
    await _check_place_is_free(blobs)
    arriving, version = await _announce(registry, source.identity, clock)
    moved = _extent(source, relocation)
    if ahead:
        return replace(moved, copied=await relocation.copy_files(blobs, on_progress))
    begins = source.stores.journal.info().tail
    journal = await engine.journal(SHARD, arriving.epoch, begins=begins)
    try:
        names = FileNames(arriving.epoch)
        await relocation.finish(
            blobs, journal, names, now_us=clock.now_us(), on_progress=on_progress
        )
        # An earlier attempt may have left records that the realm no longer has.
        for key in await registry.list(ACCESS):
            await _set(registry, key, None)
        for key, value in source.access.items():
            await _set(registry, key, value)
        await _set(registry, IDENTITY_KEY, source.identity.encode())
        # The record of the arrival is deleted last, because no node serves a partly imported realm
        # while the record exists.
        await registry.delete(ARRIVING_KEY, version)
    finally:
        await journal.close()
    return moved


async def abandon_import(engine: StorageEngine, clock: Clock, cluster: str) -> bool:
    """Remove the remains of an unfinished import. Returns whether one existed."""
    registry = await engine.registry()
    unfinished = import_in(await registry.get(ARRIVING_KEY))
    if unfinished is None:
        return False
    arriving, version = await _announce(registry, unfinished.realm, clock)
    # Opening the journal in a new epoch stops an import that may still be writing.
    journal = await engine.journal(SHARD, arriving.epoch)
    await journal.trim(journal.info().tail)
    await journal.close()
    blobs = await engine.blobs(SHARD)
    for info in await blobs.list():
        await blobs.delete(info.name)
    for key in (*await registry.list(ACCESS), IDENTITY_KEY):
        await _set(registry, key, None)
    # The record of the arrival is deleted last, so that an interrupted removal can be repeated.
    await registry.delete(ARRIVING_KEY, version)
    return True


def _relocation(source: SourceRealm) -> Relocation:
    """Return the move of a realm into a cluster, with the rules of a cluster."""
    return Relocation(
        source.recovered,
        source.stores.blobs,
        replace(rules(), is_cluster=True),
        offload=asyncio.to_thread,
    )


def _extent(source: SourceRealm, relocation: Relocation) -> RealmMoved:
    """Return the result of an import as far as it is known before any file is copied."""
    return RealmMoved(realm=source.identity, plan=relocation.plan(), users=bool(source.access))


async def _announce(registry: Registry, realm: str, clock: Clock) -> tuple[ArrivingRealm, int]:
    """Record that a realm is being imported, before any part of it exists. Return the record, which
    has the epoch of this import's writes, and the version of the record. Raises ``IllegalState`` if
    another process was faster."""
    with suppress(Conflict):  # an earlier attempt has written it
        await registry.cas(FORMAT_KEY, 0, b"%d" % FORMAT)
    key = f"{SHARDS}{SHARD}"
    record, claim = await registry.get(ARRIVING_KEY), await registry.get(key)
    if record is None and claim is not None:
        raise _conflict()
    before = None if claim is None else msgspec.json.decode(claim.value, type=ClaimRecord)
    epoch = 1 if before is None else before.epoch + 1
    nonce = secrets.token_hex(8)
    arriving = ArrivingRealm(realm=realm, nonce=nonce, epoch=epoch, at_us=clock.now_us())
    released = ClaimRecord("", nonce, epoch, format=FORMAT, confirmed=0)
    try:
        version = 0 if record is None else record.version
        version = await registry.cas(ARRIVING_KEY, version, msgspec.json.encode(arriving))
        claimed = 0 if claim is None else claim.version
        await registry.cas(key, claimed, msgspec.json.encode(released))
    except Conflict:
        raise _conflict() from None
    return arriving, version


def _conflict() -> IllegalState:
    """Return the error for a register that another process has changed since it was read."""
    return IllegalState(
        "a node of the cluster was started, or another import was begun, at this moment: stop it, "
        "and try again"
    )


async def _records(registry: Registry, prefix: str = "") -> dict[str, VersionedRecord]:
    """Return the records of a registry whose keys begin with ``prefix``."""
    records = {}
    for key in await registry.list(prefix):
        if (record := await registry.get(key)) is not None:
            records[key] = record
    return records


async def _set(registry: Registry, key: str, value: bytes | None) -> None:
    """Set or remove a record that no other process writes at the same time."""
    record = await registry.get(key)
    version = 0 if record is None else record.version
    if value is not None and (record is None or record.value != value):
        await registry.cas(key, version, value)
    elif value is None and record is not None:
        await registry.delete(key, version)


# --- out of a cluster ---------------------------------------------------------------------


async def export_realm(
    engine: StorageEngine,
    records: Mapping[str, VersionedRecord],
    directory: Path,
    clock: Clock,
    cluster: str,
    *,
    on_progress: OnProgress = lambda _: None,
) -> RealmMoved:
    """Write the realm of a cluster as a data directory for a realm on one machine, with everything
    acknowledged before the call. The nodes continue. ``records`` are those of the register.

    Raises ``InvalidArgument`` unless the directory is empty or missing, ``IllegalState`` for a
    cluster without a realm.
    """
    check_has_realm(records, cluster)
    _check_empty(directory)
    partial = directory.with_name(directory.name + PARTIAL)
    # An interrupted export has left this directory.
    if partial.exists():
        await asyncio.to_thread(shutil.rmtree, partial)
    partial.mkdir(mode=PRIVATE_DIRECTORY, parents=True)
    stores = opened(absolute(partial), RealDisk(), offload=asyncio.to_thread)
    try:
        target = TargetStores(stores.journal, stores.blobs, stores.registry)
        moved = await write_realm(engine, records, target, clock=clock, on_progress=on_progress)
    finally:
        await stores.pages.close()
        await stores.journal.close()
    try:
        # The directory gets its name last, so that it appears only when it is complete.
        partial.rename(directory)
        RealDisk().sync_directory(absolute(directory.parent))
    except OSError as error:
        raise StorageFailed(f"{partial} cannot be renamed to {directory}: {error}") from error
    return moved


def check_has_realm(records: Mapping[str, VersionedRecord], cluster: str) -> None:
    """Raise ``IllegalState`` for a cluster without a realm, or with a partly imported one."""
    if ARRIVING_KEY in records:
        raise IllegalState(
            f"an import into the cluster {cluster!r} was not finished, so its realm is incomplete"
        )
    if IDENTITY_KEY not in records:
        raise IllegalState(f"the cluster {cluster!r} has no realm: check its name (cluster.name)")


async def write_realm(
    engine: StorageEngine,
    records: Mapping[str, VersionedRecord],
    stores: TargetStores,
    clock: Clock,
    *,
    on_progress: OnProgress = lambda _: None,
) -> RealmMoved:
    """Write the realm of a cluster into new stores of one machine."""
    plan = await _copy_realm(engine, stores, clock, on_progress=on_progress)
    access = {key: record.value for key, record in records.items() if key.startswith(ACCESS)}
    for key, value in access.items():
        await _set(stores.registry, key, value)
    identity = records[IDENTITY_KEY].value
    await _set(stores.registry, IDENTITY_KEY, identity)
    return RealmMoved(realm=identity.decode(), plan=plan, users=bool(access))


async def _copy_realm(
    engine: StorageEngine, stores: TargetStores, clock: Clock, on_progress: OnProgress
) -> RelocationPlan:
    """Copy the realm of a cluster into stores. If the owner removes a file that is about to be
    copied, read the realm again. Raises ``Unavailable`` after `ATTEMPTS_MAX` attempts."""
    blobs = await engine.blobs(SHARD)
    for attempt in count(1):
        try:
            relocation = await _read_realm(engine, blobs)
            plan = relocation.plan()
            names, now_us = FileNames(), clock.now_us()
            await relocation.finish(
                stores.blobs, stores.journal, names, now_us=now_us, on_progress=on_progress
            )
        except (Trimmed, NameDoesNotExist) as error:
            if attempt == ATTEMPTS_MAX:
                raise Unavailable(
                    f"the cluster removes files faster than they can be copied: {error}"
                ) from error
        else:
            return plan
    raise AssertionError("the loop returns or raises")


async def _read_realm(engine: StorageEngine, blobs: Blobs) -> Relocation:
    """Read the current realm without taking it from its owner."""
    journal = await engine.open_read_only(SHARD)
    if journal is None:
        raise Damaged("the register names a realm, but the engine has no journal of it")
    try:
        recovered = await recover(journal, blobs, MemoryPages(), rules=rules(), epoch=1)
    finally:
        await journal.close()
    return Relocation(recovered, blobs, rules(), offload=asyncio.to_thread)


def _check_empty(directory: Path) -> None:
    """Raise ``InvalidArgument`` unless a directory is empty or missing. Its parent is created."""
    try:
        if directory.exists() and any(directory.iterdir()):
            raise InvalidArgument(
                f"{directory} is not empty; name a directory that is missing or empty"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(f"{directory} cannot be used: {error.strerror or error}") from error

"""The composition root: the only module that knows which adapters exist."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from functools import partial
from pathlib import Path
from typing import Protocol

from msgspec.structs import replace

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.ports import Blobs, Clock, Journal, Pages, Registry
from penstock_server.bootstrap.directories import absolute, opened
from penstock_server.bootstrap.registries import registered as registered
from penstock_server.bootstrap.registries import rules as rules
from penstock_server.frontends.native.listener import NativeLimits, NativeListener
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.access.access import AccessControl, AccessRules
from penstock_server.runtime.access.accounts import Accounts
from penstock_server.runtime.access.audit import KINDS, Audit, AuditFile, Kind
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.quota import ConnectionLimits
from penstock_server.runtime.access.shared_accounts import SharedAccounts
from penstock_server.runtime.access.tokens import TokenRules, Tokens, fetched
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.lease_book import LeaseLimits
from penstock_server.runtime.subscriptions.realm_limits import Limits
from penstock_server.runtime.upkeep.sealer import SealingLimits
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.runtime.writer.placement import MemoryLimits
from penstock_server.settings import AccessSettings, Settings
from penstock_server.storage.audit_file import NAMES, FileAudit
from penstock_server.storage.disk import RealDisk
from penstock_server.storage.embedded import Embedded
from penstock_server.storage.embedded.copying import Capture
from penstock_server.storage.embedded.inspection import inspect_directory as inspect_directory
from penstock_server.storage.embedded.repairing import check_exists
from penstock_server.storage.secrecy import mend
from penstock_server.storage.secrecy import openness as openness

IDENTITY_KEY = "identity"


async def open_realm(
    directory: Path | None,
    settings: Settings,
    *,
    local_to: str = "",
    shared: SharedAccounts | None = None,
    clock: Clock | None = None,
) -> RunningRealm:
    """Open a data directory (None: a realm in memory) and recover what it holds. With ``local_to``
    it has the local channels of this node of a cluster, and its users are ``shared``. Without a
    ``clock`` it has the time of the machine.

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
    """
    clock = clock or SystemClock()
    stores = await _stores(directory, clock)
    try:
        realm = await RunningRealm.open(
            stores.journal,
            stores.blobs,
            stores.pages,
            replace(rules(settings), local_to=local_to),
            clock,
            asyncio.to_thread,
            identity=await _identity(stores.registry),
            name=settings.name,
            limits=realm_limits(settings),
            sealing=sealing_limits(settings),
        )
        if directory is not None and isinstance(stores, Embedded):
            realm.backups.capture = Capture(absolute(directory), RealDisk(), stores.journal)
            realm.disk_space = partial(_disk_space, directory)
        realm.access = access(stores.registry, directory, settings, clock=clock, shared=shared)
        realm.access.definition_of = realm.definition_of
        await realm.access.begin()
    except BaseException:
        await stores.pages.close()
        await stores.journal.close()
        raise
    return realm


def _disk_space(directory: Path) -> tuple[int, int]:
    """Bytes that are free on the disk of a data directory for this process, and all bytes of
    it."""
    found = shutil.disk_usage(directory)
    return found.free, found.total


def _apart(wanted: AccessSettings) -> frozenset[str]:
    """Ways of signing in whose users are distinct from users with a password."""
    given = {"token": wanted.token_users, "certificate": wanted.certificate_users}
    return frozenset(proof for proof, users in given.items() if users == "apart")


def access(
    registry: Registry,
    directory: Path | None,
    settings: Settings,
    clock: Clock,
    shared: SharedAccounts | None = None,
    control: type[AccessControl] = AccessControl,
) -> AccessControl:
    """Access control as the settings configure it; users may be ``shared`` with others. Raises
    ``InvalidArgument``."""
    wanted = settings.access
    rules = TokenRules(
        keys=wanted.token_keys,
        issuer=wanted.token_issuer,
        audience=wanted.token_audience,
        user_claim=wanted.token_user_claim,
        groups_claim=wanted.token_groups_claim,
    )
    files: dict[Kind, AuditFile] = {}
    if directory is not None:
        for kind in KINDS:
            files[kind] = FileAudit(
                absolute(directory),
                disk=RealDisk(),
                offload=asyncio.to_thread,
                name=NAMES[kind],
                files_max=wanted.audit_files,
            )
    kept = registry if wanted.mode != "off" else None
    return control(
        Accounts(
            kept,
            clock,
            asyncio.to_thread,
            rounds=wanted.password_rounds,
            length_min=wanted.password_length_min,
            shared=shared,
        ),
        Tokens(rules, fetched, clock, offload=asyncio.to_thread),
        Audit(clock, files),
        logins=Logins(
            clock,
            idle_s=wanted.login_idle_s,
            total_s=wanted.login_total_s,
            of_user_max=wanted.logins_per_user_max,
            registry=kept,
        ),
        offload=asyncio.to_thread,
        rules=AccessRules(
            wanted.mode,
            wanted.failure_delay_s,
            wanted.lockout,
            cleartext_passwords=wanted.cleartext_passwords,
            apart=_apart(wanted),
        ),
        clock=clock,
    )


def tls(settings: Settings) -> Tls | None:
    """The realm's certificate, for all its front ends; None: there is none. Raises
    ``InvalidArgument``."""
    wanted = settings.listen
    if not wanted.tls_certificate:
        if wanted.tls_key or wanted.tls_client_ca or wanted.tls_client_required:
            raise InvalidArgument("listen.tls_certificate is missing; the other TLS files need it")
        return None
    return Tls(
        wanted.tls_certificate,
        wanted.tls_key,
        wanted.tls_client_ca,
        client_required=wanted.tls_client_required,
        client_revoked=wanted.tls_client_revoked,
    )


def with_certificate(directory: Path | None, settings: Settings) -> Settings:
    """The settings, naming the certificate that the realm makes for itself where it is to have
    one of its own. Raises ``InvalidArgument``."""
    listen = settings.listen
    if listen.tls_certificate or not listen.tls_self_signed:
        return settings
    if directory is None:
        raise InvalidArgument(
            "listen.tls_self_signed needs a data directory, where clients can find the certificate"
        )
    from penstock_server.bootstrap.self_signed import (
        own_certificate,  # slow to import, and rarely needed
    )

    now_us = SystemClock().now_us()
    certificate, key = own_certificate(Path(absolute(directory)), listen.tls_self_signed, now_us)
    return replace(settings, listen=replace(listen, tls_certificate=certificate, tls_key=key))


class Stores(Protocol):
    """The stores of a realm."""

    @property
    def journal(self) -> Journal: ...

    @property
    def blobs(self) -> Blobs: ...

    @property
    def pages(self) -> Pages: ...

    @property
    def registry(self) -> Registry: ...


async def _stores(directory: Path | None, clock: Clock) -> Stores:
    if directory is None:
        from penstock_server.storage.memory import InMemory  # most realms have a data directory

        return InMemory()
    root = absolute(directory)
    stores = await asyncio.to_thread(
        lambda: opened(root, RealDisk(), offload=asyncio.to_thread, clock=clock)
    )
    await asyncio.to_thread(mend, root)
    return stores


async def _identity(registry: Registry) -> str:
    """Names this realm for ever; made at its first start."""
    record = await registry.get(IDENTITY_KEY)
    if record is None:
        await registry.cas(IDENTITY_KEY, 0, secrets.token_hex(16).encode())
        record = await registry.get(IDENTITY_KEY)
        assert record is not None, "it was just written"
    return record.value.decode()


def realm_limits(settings: Settings) -> Limits:
    """The limits of a realm, as the settings have them."""
    return Limits(
        event_bytes_max=settings.limits.max_event_bytes,
        memory=MemoryLimits(
            heap_bytes_max=settings.limits.memory_bytes,
            off_heap_bytes_max=settings.limits.off_heap_bytes,
            paged_bytes_max=settings.limits.paged_bytes,
            index_bytes_max=settings.limits.index_bytes,
            property_names_max=settings.limits.property_names_max,
        ),
        stage_bytes_max=settings.limits.stage_bytes,
        tail_bytes_max=settings.limits.unsealed_bytes,
        sweep_interval_s=settings.storage.sweep_interval_ms / 1_000,
        leases=LeaseLimits(
            leases_max=settings.http.leases_max,
            leases_per_user_max=settings.http.leases_per_user_max,
            events_max=settings.http.leased_events_max,
            events_per_user_max=settings.http.leased_events_per_user_max,
        ),
    )


def sealing_limits(settings: Settings) -> SealingLimits:
    """When a realm writes files, as the settings have it."""
    return SealingLimits(
        segment_bytes_max=settings.storage.segment_bytes,
        journal_bytes_max=settings.storage.journal_bytes,
        snapshot_blocks_max=settings.storage.snapshot_blocks,
        snapshot_interval_s=settings.storage.snapshot_interval_s,
        interval_s=settings.storage.seal_interval_ms / 1_000,
    )


def native_listener(
    realm: RunningRealm, settings: Settings, version: str, certificate: Tls | None = None
) -> NativeListener:
    """The listener of the native protocol, with a certificate that is in use already, or with the
    one that the settings name."""
    return NativeListener(
        realm,
        version,
        NativeLimits(
            hello_timeout_s=settings.listen.hello_timeout_s,
            idle_timeout_s=settings.listen.idle_timeout_s,
            connections_max=settings.listen.connections_max,
            connections_per_user_max=settings.limits.connections_per_user_max,
            mqtt_sessions_per_user_max=settings.limits.mqtt_sessions_per_user_max,
            mqtt_session_bytes_per_user_max=settings.limits.mqtt_session_bytes_per_user_max,
            mqtt_retained_messages_max=settings.limits.mqtt_retained_messages_max,
            mqtt_retained_bytes_max=settings.limits.mqtt_retained_bytes_max,
            each=ConnectionLimits(
                settings.limits.requests_per_s_max,
                settings.limits.in_flight_bytes_max,
                settings.limits.subscriptions_per_connection_max,
            ),
        ),
        tls=certificate or tls(settings),
    )


async def reset_administrator(
    directory: Path, settings: Settings, user: str, password: str = ""
) -> str:
    """Give a user of a stopped realm every right and a password, made up where none is given.

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``Damaged``.
    """
    check_exists(RealDisk(), absolute(directory))
    clock = SystemClock()
    stores = await _stores(directory, clock)
    given = access(stores.registry, directory, settings, clock=clock)
    try:
        return await given.reset(user, password)
    finally:
        await given.close()
        await stores.pages.close()
        await stores.journal.close()

"""The composition root, the only module that knows which adapters exist."""

from __future__ import annotations

import asyncio
import secrets
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
from penstock_server.runtime.access.ldap_conversation import LdapRules
from penstock_server.runtime.access.ldap_sign_in import Ldap
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.quota import ConnectionLimits
from penstock_server.runtime.access.shared_accounts import SharedAccounts
from penstock_server.runtime.access.tokens import TokenRules, Tokens, fetched
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.subscriptions.lease_book import LeaseLimits
from penstock_server.runtime.subscriptions.realm_limits import Limits, TableLimits
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
SCRATCH = "tables"
"""Folder in the data directory for files that the realm can always generate again."""


async def open_realm(
    directory: Path | None,
    settings: Settings,
    *,
    local_to: str = "",
    shared: SharedAccounts | None = None,
    clock: Clock | None = None,
) -> RunningRealm:
    """Open a realm in a data directory, or in memory if ``directory`` is None, and recover its
    content.

    With ``local_to``, the realm has the local channels of this cluster node, and its users are
    ``shared``. ``clock`` defaults to the machine's clock. Raises ``DataDirectoryInUse``,
    ``NewerFormat``, ``InvalidArgument``, ``StorageFailed``.
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
            await give_scratch_folder(realm, directory)
        realm.access = access(stores.registry, directory, settings, clock=clock, shared=shared)
        realm.access.definition_of = realm.definition_of
        await realm.access.begin()
    except BaseException:
        # The journal is closed last, because closing it unlocks the data directory.
        await stores.pages.close()
        await stores.journal.close()
        raise
    return realm


async def give_scratch_folder(realm: RunningRealm, directory: Path) -> None:
    """Give the realm a folder in its data directory for files that it can generate again, and
    remove the files of earlier processes. They cannot be used again, because a process records its
    files only in memory."""
    realm.scratch_folder = Path(absolute(directory)) / SCRATCH
    if realm.scratch_folder.exists():
        import shutil  # here, because most starts have nothing to remove

        await asyncio.to_thread(shutil.rmtree, realm.scratch_folder, ignore_errors=True)


def _disk_space(directory: Path) -> tuple[int, int]:
    """Return the free bytes and the size in bytes of the disk of a data directory."""
    import shutil

    usage = shutil.disk_usage(directory)
    return usage.free, usage.total


def _proofs_with_separate_users(settings: AccessSettings) -> frozenset[str]:
    """Return the ways of signing in whose users are distinct from users with a password."""
    users_by_proof = {
        "token": settings.token_users,
        "certificate": settings.certificate_users,
        "ldap": settings.ldap.users,
    }
    return frozenset(proof for proof, users in users_by_proof.items() if users == "apart")


def access(
    registry: Registry,
    directory: Path | None,
    settings: Settings,
    clock: Clock,
    shared: SharedAccounts | None = None,
    control: type[AccessControl] = AccessControl,
) -> AccessControl:
    """Return the access control that the settings configure. ``shared`` are accounts that several
    realms share. Raises ``InvalidArgument``."""
    access_settings = settings.access
    rules = TokenRules(
        keys=access_settings.token_keys,
        issuer=access_settings.token_issuer,
        audience=access_settings.token_audience,
        user_claim=access_settings.token_user_claim,
        groups_claim=access_settings.token_groups_claim,
    )
    ldap_rules = LdapRules(
        **{name: getattr(access_settings.ldap, name) for name in LdapRules.__struct_fields__}
    )
    files: dict[Kind, AuditFile] = {}
    if directory is not None:
        for kind in KINDS:
            files[kind] = FileAudit(
                absolute(directory),
                disk=RealDisk(),
                offload=asyncio.to_thread,
                name=NAMES[kind],
                files_max=access_settings.audit_files,
            )
    # Without authentication, accounts and logins are not stored.
    account_registry = registry if access_settings.mode != "off" else None
    return control(
        Accounts(
            account_registry,
            clock,
            asyncio.to_thread,
            rounds=access_settings.password_rounds,
            length_min=access_settings.password_length_min,
            shared=shared,
        ),
        Tokens(rules, fetched, clock, offload=asyncio.to_thread),
        Audit(clock, files),
        logins=Logins(
            clock,
            idle_s=access_settings.login_idle_s,
            total_s=access_settings.login_total_s,
            of_user_max=access_settings.logins_per_user_max,
            registry=account_registry,
        ),
        offload=asyncio.to_thread,
        rules=AccessRules(
            access_settings.mode,
            access_settings.failure_delay_s,
            access_settings.lockout,
            cleartext_passwords=access_settings.cleartext_passwords,
            apart=_proofs_with_separate_users(access_settings),
        ),
        clock=clock,
        ldap=Ldap(ldap_rules, clock),
    )


def tls(settings: Settings) -> Tls | None:
    """Return the realm's certificate for all its front ends; None if TLS is not configured. Raises
    ``InvalidArgument``."""
    listen = settings.listen
    if not listen.tls_certificate:
        if listen.tls_key or listen.tls_client_ca or listen.tls_client_required:
            raise InvalidArgument(
                "listen.tls_certificate is missing; set it, because the other TLS settings need it"
            )
        return None
    return Tls(
        listen.tls_certificate,
        listen.tls_key,
        listen.tls_client_ca,
        client_required=listen.tls_client_required,
        client_revoked=listen.tls_client_revoked,
    )


def with_certificate(directory: Path | None, settings: Settings) -> Settings:
    """Return the settings with the paths of the self-signed certificate if one is configured; it is
    created if necessary. Raises ``InvalidArgument``."""
    listen = settings.listen
    if listen.tls_certificate or not listen.tls_self_signed:
        return settings
    if directory is None:
        raise InvalidArgument(
            "listen.tls_self_signed requires a data directory, in which clients find the "
            "certificate"
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
    """Open the stores in ``directory``, and remove the permissions of other users from its files.
    Without a directory, return stores in memory."""
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
    """Return the realm's permanent id, which is generated at its first start."""
    record = await registry.get(IDENTITY_KEY)
    if record is None:
        await registry.cas(IDENTITY_KEY, 0, secrets.token_hex(16).encode())
        record = await registry.get(IDENTITY_KEY)
        assert record is not None, "the record was just written"
    return record.value.decode()


def realm_limits(settings: Settings) -> Limits:
    """Return the limits of a realm from the settings."""
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
        tables=TableLimits(
            fresh_ms=settings.tables.fresh_ms,
            hold_s=settings.tables.hold_s,
            cache_bytes_max=settings.tables.cache_bytes,
            memory_events_max=settings.tables.memory_events_max,
            snapshots_per_user_max=settings.tables.snapshots_per_user_max,
        ),
    )


def sealing_limits(settings: Settings) -> SealingLimits:
    """Return the limits at which a realm writes files, from the settings."""
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
    """Return the listener of the native protocol. ``certificate`` is one that is in use already; by
    default it is loaded from the settings."""
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
    """Grant every right to a user of a stopped realm, set its password, and return the password;
    an empty ``password`` is replaced by a generated one.

    Raises ``DataDirectoryInUse``, ``NewerFormat``, ``InvalidArgument``, ``Damaged``.
    """
    check_exists(RealDisk(), absolute(directory))
    clock = SystemClock()
    stores = await _stores(directory, clock)
    control = access(stores.registry, directory, settings, clock=clock)
    try:
        return await control.reset(user, password)
    finally:
        # The journal is closed last, as in open_realm().
        await control.close()
        await stores.pages.close()
        await stores.journal.close()

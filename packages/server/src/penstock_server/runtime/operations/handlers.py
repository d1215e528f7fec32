"""Handlers of requests that wait for the realm."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import MappingProxyType
from typing import Any, Final, TypeVar

from penstock_core.api import (
    access,
    channels,
    consuming,
    durables,
    joins,
    patterns,
    reading,
    requesting,
    subscriptions,
    transactions,
    transfers,
)
from penstock_core.api import realm as realms
from penstock_core.api.requests import Request
from penstock_core.ids.ids import Span, Spans
from penstock_core.vocabulary.durable_attributes import durable_attributes
from penstock_core.vocabulary.errors import AccessDenied, IllegalState, RemoteProtocolViolation
from penstock_server.parts import registered
from penstock_server.runtime.operations import (
    access_handlers,
    reading_handlers,
    realm_handlers,
    tar_handlers,
)
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.subscriptions.locations import columns, locate, missing
from penstock_server.runtime.writer.copies_in import TakeCopies, copies_from

GROUP: Final = "penstock.handlers"
"""Group of mappings from types of requests to handlers, which installed packages register."""

RequestT = TypeVar("RequestT", bound=Request[Any])

Handler = Callable[[Caller, Any], Awaitable[Any]]
"""Does what a request asks; whether it may was asked before."""


def _on(
    kind: type[RequestT], handler: Callable[[Caller, RequestT], Awaitable[Any]]
) -> tuple[type[Request[Any]], Handler]:
    return kind, handler


def _create_durable(by: Caller, asked: durables.CreateDurable) -> Awaitable[durables.DurableInfo]:
    return by.realm.subscriptions.create_durable(
        asked.channel,
        asked.name,
        asked.kind,
        start=asked.start,
        selector=asked.selector,
        persistent=asked.persistent,
        attributes=durable_attributes(asked),
    )


def _redrive(by: Caller, asked: joins.Redrive) -> Awaitable[joins.Redriven]:
    may = partial(by.realm.access.require_publish, by.principal)
    return by.realm.redrive(
        asked.source, asked.destination, asked.selector, dry_run=asked.dry_run, may=may
    )


def checked(spans: Spans) -> Spans:
    """Ranges of ids a client names. Raises ``RemoteProtocolViolation`` for one that has none."""
    for first, end in spans:
        if first >= end:
            raise RemoteProtocolViolation(f"a range of ids from {first} to {end}")
    return spans


async def put_import(by: Caller, asked: transfers.PutImport, content: memoryview | None) -> None:
    """Take bytes of a file of an import, which come with the request."""
    if not content:
        raise RemoteProtocolViolation("a part of a file is empty")
    await by.realm.imports.put(
        by.session, asked.import_, asked.file, offset=asked.offset, content=content
    )


async def copy_in(by: Caller, asked: joins.CopyIn, content: memoryview | None) -> joins.CopiesTaken:
    """Store what a node of the cluster has copied, which comes with the request."""
    if not by.is_node:
        raise AccessDenied("only nodes of the cluster bring copies; publish events instead")
    copies = copies_from(asked.parts, memoryview(b"") if content is None else content)
    number = by.realm.directory.channel_id_of(asked.destination)
    work = TakeCopies(number, asked.archive, asked.producer, copies=copies)
    taken: joins.CopiesTaken = await by.realm.shard.ask(work)
    return taken


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = MappingProxyType(
    dict(
        (
            # Channels and queues
            _on(
                channels.CreateChannel,
                lambda by, it: by.realm.create_channel(it.name, it.definition),
            ),
            _on(channels.OpenChannel, lambda by, it: by.realm.open_channel(it.name, it.kind)),
            _on(channels.DeleteChannel, lambda by, it: by.realm.delete_channel(it.name, it.kind)),
            _on(
                channels.EditChannel,
                lambda by, it: by.realm.edit_channel(it.name, it.definition),
            ),
            _on(channels.ListChannels, lambda by, it: by.realm.list_channels(it.kind)),
            _on(
                channels.DescribeChannel,
                lambda by, it: by.realm.describe_channel(it.name, it.kind),
            ),
            _on(channels.MaintainChannel, lambda by, it: by.realm.maintain(it.name, it.kind)),
            _on(
                channels.PurgeChannel,
                lambda by, it: by.realm.subscriptions.purge(
                    it.channel, it.first_id, it.last_id, selector=it.selector
                ),
            ),
            _on(
                channels.CountPurge,
                lambda by, it: by.realm.subscriptions.purge(
                    it.channel, it.first_id, it.last_id, selector=it.selector, dry_run=True
                ),
            ),
            _on(
                channels.DescribeColumns,
                lambda by, it: columns(by.realm.shard, it.channel),
            ),
            _on(
                channels.Locate,
                lambda by, it: locate(
                    by.realm.shard,
                    by.realm.dispatch,
                    it.channel,
                    span=Span(it.first_id, it.end_id),
                    publishers=it.publishers,
                ),
            ),
            _on(
                channels.DescribeMissing,
                lambda by, it: missing(by.realm.shard, it.channel, Span(it.first_id, it.end_id)),
            ),
            _on(channels.OpenSchedule, lambda by, it: by.realm.schedule_of(it.channel)),
            # Request and reply
            _on(
                requesting.OpenReplyQueue,
                lambda by, it: by.realm.reply_queues.open(
                    by.realm.access,
                    by.principal,
                    it.name,
                    by.session_for(it.name),
                    by.owner,
                ),
            ),
            _on(
                requesting.CloseReplyQueue,
                lambda by, it: by.realm.reply_queues.close(by.realm.access, by.principal, it.name),
            ),
            _on(
                requesting.OpenReplyTo,
                lambda by, it: by.realm.reply_queues.open_address(it.address),
            ),
            # What is read for one answer
            _on(reading.BrowseEvents, reading_handlers.browse_events),
            _on(reading.BrowseOutstanding, reading_handlers.browse_outstanding),
            _on(reading.ReadEvent, reading_handlers.read_event),
            _on(reading.PopEvents, reading_handlers.pop_events),
            _on(consuming.FetchEvents, reading_handlers.fetch_events),
            _on(consuming.SettleLease, reading_handlers.settle_lease),
            _on(consuming.ExtendLease, reading_handlers.extend_lease),
            _on(consuming.FetchFromPattern, reading_handlers.fetch_from_pattern),
            _on(consuming.SettlePatternLease, reading_handlers.settle_lease),
            _on(consuming.ExtendPatternLease, reading_handlers.extend_lease),
            _on(reading.ReadKeyState, reading_handlers.read_key_state),
            _on(reading.SummarizeDead, reading_handlers.summarize_dead),
            _on(reading.ExplainSelector, reading_handlers.explain_selector),
            _on(reading.ListScheduled, reading_handlers.list_scheduled),
            _on(reading.CancelScheduled, reading_handlers.cancel_scheduled),
            # Durables
            _on(durables.CreateDurable, _create_durable),
            _on(
                durables.DeleteDurable,
                lambda by, it: by.realm.subscriptions.delete_durable(it.channel, it.name),
            ),
            _on(durables.ListDurables, lambda by, it: by.realm.subscriptions.durables(it.channel)),
            _on(
                durables.DescribeDurable,
                lambda by, it: by.realm.subscriptions.durable(it.channel, it.name),
            ),
            _on(
                durables.PurgeDurable,
                lambda by, it: by.realm.subscriptions.purge_durable(
                    it.channel, it.name, it.first_id, last=it.last_id, selector=it.selector
                ),
            ),
            _on(
                durables.CountDurablePurge,
                lambda by, it: by.realm.subscriptions.purge_durable(
                    it.channel,
                    it.name,
                    it.first_id,
                    last=it.last_id,
                    selector=it.selector,
                    dry_run=True,
                ),
            ),
            _on(
                durables.UnbindDurable,
                lambda by, it: by.realm.subscriptions.unbind(it.channel, it.name),
            ),
            _on(
                durables.SeekDurable,
                lambda by, it: by.realm.subscriptions.seeking.seek(
                    it.channel, it.name, it.to, key=it.key
                ),
            ),
            _on(
                durables.PreviewSeek,
                lambda by, it: by.realm.subscriptions.seeking.preview(it.channel, it.name, it.to),
            ),
            _on(
                durables.DescribeOutstanding,
                lambda by, it: by.realm.subscriptions.holding.outstanding(
                    it.channel, it.name, Span(it.first_id, it.end_id)
                ),
            ),
            _on(
                subscriptions.Hold,
                lambda by, it: by.realm.subscriptions.holding.hold(
                    by.seat(it.subscription), Span(it.first_id, it.end_id)
                ),
            ),
            _on(
                subscriptions.Extend,
                lambda by, it: by.realm.subscriptions.holding.extend(
                    by.seat(it.subscription), checked(it.spans), it.time_ms
                ),
            ),
            _on(
                subscriptions.Bury,
                lambda by, it: by.realm.subscriptions.holding.bury(
                    by.seat(it.subscription), checked(it.spans), it.reason
                ),
            ),
            # Durables over patterns
            _on(
                patterns.CreatePatternDurable,
                lambda by, it: by.realm.pattern_durables.create(it),
            ),
            _on(
                patterns.DeletePatternDurable,
                lambda by, it: by.realm.pattern_durables.delete(it.pattern, it.name),
            ),
            _on(
                patterns.ListPatternDurables,
                lambda by, it: by.realm.pattern_durables.list(),
            ),
            # Transactions
            _on(
                transactions.BeginTransaction,
                lambda by, it: by.realm.transactions.begin(by.owned(it.transaction), it.channels),
            ),
            _on(
                transactions.AbortTransaction,
                lambda by, it: by.realm.transactions.abort(by.owned(it.transaction)),
            ),
            _on(
                transactions.DescribeTransaction,
                lambda by, it: by.realm.transactions.describe(by.owned(it.transaction)),
            ),
            # What is copied as a whole
            _on(
                transfers.BeginExport,
                lambda by, it: by.realm.exports.begin(by.session, it.name, it.kind),
            ),
            _on(
                transfers.ReadExport,
                lambda by, it: by.realm.exports.read(
                    by.session, it.export, it.file, offset=it.offset
                ),
            ),
            _on(transfers.EndExport, lambda by, it: by.realm.exports.end(by.session, it.export)),
            _on(
                transfers.BeginImport,
                lambda by, it: by.realm.imports.begin(by.session, it.name, it.manifest),
            ),
            _on(
                transfers.CommitImport,
                lambda by, it: by.realm.imports.commit(by.session, it.import_),
            ),
            _on(
                transfers.AbortImport,
                lambda by, it: by.realm.imports.abort(by.session, it.import_),
            ),
            _on(transfers.ExportTar, tar_handlers.export_tar),
            _on(
                transfers.BeginBackup,
                lambda by, it: by.realm.backups.begin(by.session, by.version),
            ),
            _on(
                transfers.ReadBackup,
                lambda by, it: by.realm.backups.read(
                    by.session, it.backup, it.file, offset=it.offset
                ),
            ),
            _on(
                transfers.EndBackup,
                lambda by, it: by.realm.backups.end(
                    by.session, it.backup, is_complete=it.is_complete
                ),
            ),
            # The realm
            _on(realms.DescribeRealm, lambda by, it: by.realm.describe(by.version)),
            _on(realms.PausePublishing, lambda by, it: by.realm.pause(it.paused)),
            _on(realms.ListConnections, realm_handlers.list_connections),
            _on(realms.EndConnection, realm_handlers.end_connection),
            _on(realms.DescribeCluster, realm_handlers.describe_cluster),
            _on(realms.ListPipelines, realm_handlers.list_pipelines),
            _on(realms.DescribePipeline, realm_handlers.describe_pipeline),
            _on(realms.ReadRates, realm_handlers.read_rates),
            _on(realms.ReadHistory, realm_handlers.read_history),
            _on(
                joins.CreateJoin,
                lambda by, it: by.realm.joins.create(
                    it.source, it.destination, it.selector, it.archive, by.principal
                ),
            ),
            _on(joins.DeleteJoin, lambda by, it: by.realm.joins.delete(it.source, it.destination)),
            _on(joins.ListJoins, lambda by, it: by.realm.joins.list()),
            _on(joins.Redrive, _redrive),
            # Who uses it
            _on(access.WhoAmI, access_handlers.who),
            _on(access.LogIn, access_handlers.log_in),
            _on(access.LogOut, access_handlers.log_out),
            _on(access.ChangePassword, access_handlers.change_password),
            _on(access.ResetPassword, access_handlers.reset_password),
            _on(access.AddUser, access_handlers.add_user),
            _on(access.BeginPassword, access_handlers.begin_password),
            _on(access.SetPassword, access_handlers.set_password),
            _on(access.ListUsers, access_handlers.users),
            _on(
                access.CreateUser,
                lambda by, it: by.realm.access.accounts.create_user(it.name, it.verifier),
            ),
            _on(access.DeleteUser, access_handlers.delete_user),
            _on(access.ListGroups, access_handlers.groups),
            _on(
                access.CreateGroup,
                lambda by, it: by.realm.access.accounts.create_group(it.name, it.members),
            ),
            _on(
                access.ChangeGroup,
                lambda by, it: by.realm.access.accounts.change_group(it.name, it.add, it.remove),
            ),
            _on(access.DeleteGroup, lambda by, it: by.realm.access.accounts.delete_group(it.name)),
            _on(access.ListEntries, access_handlers.entries),
            _on(access.Grant, access_handlers.grant),
            _on(
                access.Revoke,
                lambda by, it: by.realm.access.accounts.revoke(
                    it.kind, it.name, it.subject, rights=it.rights
                ),
            ),
            _on(
                access.ReadAudit,
                lambda by, it: by.realm.access.audit.read(
                    kind=it.kind, before=it.before, limit=it.limit
                ),
            ),
        )
    )
)


def registered_handlers() -> Mapping[type[Request[Any]], Handler]:
    """The handlers of installed packages. Raises ``InvalidArgument`` if one cannot be loaded."""
    parts: dict[type[Request[Any]], Handler] = {}
    for part in registered(GROUP).values():
        parts |= part.load()
    return parts


def registered_handler(kind: type[Request[Any]]) -> Handler:
    """The handler of a type of request that is not in ``HANDLERS``. Raises ``IllegalState`` if no
    installed package has it."""
    handler = registered_handlers().get(kind)
    if handler is None:
        raise IllegalState(
            f"{kind.__name__} is not served here: the package with its handler is not installed"
        )
    return handler

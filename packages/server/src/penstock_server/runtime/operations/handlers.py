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
"""Group of entry points by which installed packages register mappings from types of requests to
handlers."""

RequestT = TypeVar("RequestT", bound=Request[Any])

Handler = Callable[[Caller, Any], Awaitable[Any]]
"""Executes a request and returns its answer. The caller has checked the right to it."""


def _on(
    kind: type[RequestT], handler: Callable[[Caller, RequestT], Awaitable[Any]]
) -> tuple[type[Request[Any]], Handler]:
    """Return an entry of the table; the type checker then checks that the handler takes this
    request."""
    return kind, handler


def _create_durable(
    caller: Caller, request: durables.CreateDurable
) -> Awaitable[durables.DurableInfo]:
    return caller.realm.subscriptions.create_durable(
        request.channel,
        request.name,
        request.kind,
        start=request.start,
        selector=request.selector,
        persistent=request.persistent,
        attributes=durable_attributes(request),
    )


def _redrive(caller: Caller, request: joins.Redrive) -> Awaitable[joins.Redriven]:
    may = partial(caller.realm.access.require_publish, caller.principal)
    return caller.realm.redrive(
        request.source, request.destination, request.selector, dry_run=request.dry_run, may=may
    )


def checked(spans: Spans) -> Spans:
    """Return a client's ranges of ids. Raises ``RemoteProtocolViolation`` if one is empty."""
    for first, end in spans:
        if first >= end:
            raise RemoteProtocolViolation(
                f"a range of ids from {first} to {end} is empty; its end has to be higher"
            )
    return spans


async def put_import(
    caller: Caller, request: transfers.PutImport, content: memoryview | None
) -> None:
    """Add the bytes sent with the request to a file of an import."""
    if not content:
        raise RemoteProtocolViolation("a part of a file is empty; send at least one byte")
    await caller.realm.imports.put(
        caller.session, request.import_, request.file, offset=request.offset, content=content
    )


async def copy_in(
    caller: Caller, request: joins.CopyIn, content: memoryview | None
) -> joins.CopiesTaken:
    """Store the copies that a node of the cluster has sent with the request."""
    # Copies have the publishers of the original events. A client could claim any publisher.
    if not caller.is_node:
        raise AccessDenied("only nodes of the cluster may send copies; publish events instead")
    copies = copies_from(request.parts, memoryview(b"") if content is None else content)
    number = caller.realm.directory.channel_id_of(request.destination)
    work = TakeCopies(number, request.archive, request.producer, copies=copies)
    copies_taken: joins.CopiesTaken = await caller.realm.shard.ask(work)
    return copies_taken


HANDLERS: Final[Mapping[type[Request[Any]], Handler]] = MappingProxyType(
    dict(
        (
            # Channels and queues
            _on(
                channels.CreateChannel,
                lambda caller, request: caller.realm.create_channel(
                    request.name, request.definition
                ),
            ),
            _on(
                channels.OpenChannel,
                lambda caller, request: caller.realm.open_channel(request.name, request.kind),
            ),
            _on(
                channels.DeleteChannel,
                lambda caller, request: caller.realm.delete_channel(request.name, request.kind),
            ),
            _on(
                channels.EditChannel,
                lambda caller, request: caller.realm.edit_channel(request.name, request.definition),
            ),
            _on(
                channels.ListChannels,
                lambda caller, request: caller.realm.list_channels(request.kind),
            ),
            _on(
                channels.DescribeChannel,
                lambda caller, request: caller.realm.describe_channel(request.name, request.kind),
            ),
            _on(
                channels.MaintainChannel,
                lambda caller, request: caller.realm.maintain(request.name, request.kind),
            ),
            _on(
                channels.PurgeChannel,
                lambda caller, request: caller.realm.subscriptions.purge(
                    request.channel, request.first_id, request.last_id, selector=request.selector
                ),
            ),
            _on(
                channels.CountPurge,
                lambda caller, request: caller.realm.subscriptions.purge(
                    request.channel,
                    request.first_id,
                    request.last_id,
                    selector=request.selector,
                    dry_run=True,
                ),
            ),
            _on(
                channels.DescribeColumns,
                lambda caller, request: columns(caller.realm.shard, request.channel),
            ),
            _on(
                channels.Locate,
                lambda caller, request: locate(
                    caller.realm.shard,
                    caller.realm.dispatch,
                    request.channel,
                    span=Span(request.first_id, request.end_id),
                    publishers=request.publishers,
                ),
            ),
            _on(
                channels.DescribeMissing,
                lambda caller, request: missing(
                    caller.realm.shard, request.channel, Span(request.first_id, request.end_id)
                ),
            ),
            _on(
                channels.OpenSchedule,
                lambda caller, request: caller.realm.schedule_of(request.channel),
            ),
            # Request and reply
            _on(
                requesting.OpenReplyQueue,
                lambda caller, request: caller.realm.reply_queues.open(
                    caller.realm.access,
                    caller.principal,
                    request.name,
                    caller.session_for(request.name),
                    caller.owner,
                ),
            ),
            _on(
                requesting.CloseReplyQueue,
                lambda caller, request: caller.realm.reply_queues.close(
                    caller.realm.access, caller.principal, request.name
                ),
            ),
            _on(
                requesting.OpenReplyTo,
                lambda caller, request: caller.realm.reply_queues.open_address(request.address),
            ),
            # Reads with a single answer
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
                lambda caller, request: caller.realm.subscriptions.delete_durable(
                    request.channel, request.name
                ),
            ),
            _on(
                durables.ListDurables,
                lambda caller, request: caller.realm.subscriptions.durables(request.channel),
            ),
            _on(
                durables.DescribeDurable,
                lambda caller, request: caller.realm.subscriptions.durable(
                    request.channel, request.name
                ),
            ),
            _on(
                durables.PurgeDurable,
                lambda caller, request: caller.realm.subscriptions.purge_durable(
                    request.channel,
                    request.name,
                    request.first_id,
                    last=request.last_id,
                    selector=request.selector,
                ),
            ),
            _on(
                durables.CountDurablePurge,
                lambda caller, request: caller.realm.subscriptions.purge_durable(
                    request.channel,
                    request.name,
                    request.first_id,
                    last=request.last_id,
                    selector=request.selector,
                    dry_run=True,
                ),
            ),
            _on(
                durables.UnbindDurable,
                lambda caller, request: caller.realm.subscriptions.unbind(
                    request.channel, request.name
                ),
            ),
            _on(
                durables.SeekDurable,
                lambda caller, request: caller.realm.subscriptions.seeking.seek(
                    request.channel, request.name, request.to, key=request.key
                ),
            ),
            _on(
                durables.PreviewSeek,
                lambda caller, request: caller.realm.subscriptions.seeking.preview(
                    request.channel, request.name, request.to
                ),
            ),
            _on(
                durables.DescribeOutstanding,
                lambda caller, request: caller.realm.subscriptions.holding.outstanding(
                    request.channel, request.name, Span(request.first_id, request.end_id)
                ),
            ),
            _on(
                durables.DescribeDelivery,
                reading_handlers.describe_delivery,
            ),
            _on(
                subscriptions.Hold,
                lambda caller, request: caller.realm.subscriptions.holding.hold(
                    caller.seat(request.subscription), Span(request.first_id, request.end_id)
                ),
            ),
            _on(
                subscriptions.Extend,
                lambda caller, request: caller.realm.subscriptions.holding.extend(
                    caller.seat(request.subscription), checked(request.spans), request.time_ms
                ),
            ),
            _on(
                subscriptions.Bury,
                lambda caller, request: caller.realm.subscriptions.holding.bury(
                    caller.seat(request.subscription), checked(request.spans), request.reason
                ),
            ),
            # Durables over patterns
            _on(
                patterns.CreatePatternDurable,
                lambda caller, request: caller.realm.pattern_durables.create(request),
            ),
            _on(
                patterns.DeletePatternDurable,
                lambda caller, request: caller.realm.pattern_durables.delete(
                    request.pattern, request.name
                ),
            ),
            _on(
                patterns.ListPatternDurables,
                lambda caller, request: caller.realm.pattern_durables.list(),
            ),
            # Transactions
            _on(
                transactions.BeginTransaction,
                lambda caller, request: caller.realm.transactions.begin(
                    caller.owned(request.transaction), request.channels
                ),
            ),
            _on(
                transactions.AbortTransaction,
                lambda caller, request: caller.realm.transactions.abort(
                    caller.owned(request.transaction)
                ),
            ),
            _on(
                transactions.DescribeTransaction,
                lambda caller, request: caller.realm.transactions.describe(
                    caller.owned(request.transaction)
                ),
            ),
            # Copies of stores and of the realm
            _on(
                transfers.BeginExport,
                lambda caller, request: caller.realm.exports.begin(
                    caller.session, request.name, request.kind
                ),
            ),
            _on(
                transfers.ReadExport,
                lambda caller, request: caller.realm.exports.read(
                    caller.session, request.export, request.file, offset=request.offset
                ),
            ),
            _on(
                transfers.EndExport,
                lambda caller, request: caller.realm.exports.end(caller.session, request.export),
            ),
            _on(
                transfers.BeginImport,
                lambda caller, request: caller.realm.imports.begin(
                    caller.session, request.name, request.manifest
                ),
            ),
            _on(
                transfers.CommitImport,
                lambda caller, request: caller.realm.imports.commit(
                    caller.session, request.import_
                ),
            ),
            _on(
                transfers.AbortImport,
                lambda caller, request: caller.realm.imports.abort(caller.session, request.import_),
            ),
            _on(transfers.ExportTar, tar_handlers.export_tar),
            _on(
                transfers.BeginBackup,
                lambda caller, request: caller.realm.backups.begin(caller.session, caller.version),
            ),
            _on(
                transfers.ReadBackup,
                lambda caller, request: caller.realm.backups.read(
                    caller.session, request.backup, request.file, offset=request.offset
                ),
            ),
            _on(
                transfers.EndBackup,
                lambda caller, request: caller.realm.backups.end(
                    caller.session, request.backup, is_complete=request.is_complete
                ),
            ),
            # The realm
            _on(
                realms.DescribeRealm, lambda caller, request: caller.realm.describe(caller.version)
            ),
            _on(realms.PausePublishing, lambda caller, request: caller.realm.pause(request.paused)),
            _on(realms.ListConnections, realm_handlers.list_connections),
            _on(realms.EndConnection, realm_handlers.end_connection),
            _on(realms.DescribeCluster, realm_handlers.describe_cluster),
            _on(realms.ListPipelines, realm_handlers.list_pipelines),
            _on(realms.DescribePipeline, realm_handlers.describe_pipeline),
            _on(realms.ReadRates, realm_handlers.read_rates),
            _on(realms.ReadHistory, realm_handlers.read_history),
            _on(
                joins.CreateJoin,
                lambda caller, request: caller.realm.joins.create(
                    request.source,
                    request.destination,
                    request.selector,
                    request.archive,
                    caller.principal,
                ),
            ),
            _on(
                joins.DeleteJoin,
                lambda caller, request: caller.realm.joins.delete(
                    request.source, request.destination
                ),
            ),
            _on(joins.ListJoins, lambda caller, request: caller.realm.joins.list()),
            _on(joins.Redrive, _redrive),
            # Users and rights
            _on(access.WhoAmI, access_handlers.describe_caller),
            _on(access.LogIn, access_handlers.log_in),
            _on(access.IssueToken, access_handlers.issue_token),
            _on(access.LogOut, access_handlers.log_out),
            _on(access.ChangePassword, access_handlers.change_password),
            _on(access.ResetPassword, access_handlers.reset_password),
            _on(access.AddUser, access_handlers.add_user),
            _on(access.BeginPassword, access_handlers.begin_password),
            _on(access.SetPassword, access_handlers.set_password),
            _on(access.ListUsers, access_handlers.list_users),
            _on(
                access.CreateUser,
                lambda caller, request: caller.realm.access.accounts.create_user(
                    request.name, request.verifier
                ),
            ),
            _on(access.DeleteUser, access_handlers.delete_user),
            _on(access.ListGroups, access_handlers.list_groups),
            _on(
                access.CreateGroup,
                lambda caller, request: caller.realm.access.accounts.create_group(
                    request.name, request.members
                ),
            ),
            _on(
                access.ChangeGroup,
                lambda caller, request: caller.realm.access.accounts.change_group(
                    request.name, request.add, request.remove
                ),
            ),
            _on(
                access.DeleteGroup,
                lambda caller, request: caller.realm.access.accounts.delete_group(request.name),
            ),
            _on(access.ListEntries, access_handlers.list_entries),
            _on(access.Grant, access_handlers.grant),
            _on(
                access.Revoke,
                lambda caller, request: caller.realm.access.accounts.revoke(
                    request.kind, request.name, request.subject, rights=request.rights
                ),
            ),
            _on(
                access.ReadAudit,
                lambda caller, request: caller.realm.access.audit.read(
                    kind=request.kind, before=request.before, limit=request.limit
                ),
            ),
        )
    )
)


def registered_handlers() -> Mapping[type[Request[Any]], Handler]:
    """Return the handlers of installed packages. Raises ``InvalidArgument`` if one cannot be
    loaded."""
    parts: dict[type[Request[Any]], Handler] = {}
    for part in registered(GROUP).values():
        parts |= part.load()
    return parts


def registered_handler(kind: type[Request[Any]]) -> Handler:
    """Return the handler of a type of request that is not in ``HANDLERS``. Raises ``IllegalState``
    if no installed package has a handler for it."""
    handler = registered_handlers().get(kind)
    if handler is None:
        raise IllegalState(
            f"{kind.__name__} is not served here: the package with its handler is not installed"
        )
    return handler

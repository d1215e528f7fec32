"""Requests that administer a realm: its channels and queues, joins, transactions' ends."""

from __future__ import annotations

from collections.abc import Awaitable
from functools import partial
from typing import TYPE_CHECKING, Any

from penstock.api.access import AccessRequest
from penstock.core.access.name_owners import owned
from penstock.core.ids.ids import Span
from penstock.core.vocabulary.errors import RemoteProtocolViolation
from penstock.frontends.native.accounts import AccountRequests
from penstock.runtime.subscriptions.missing_ids import missing
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from penstock.frontends.native.connection import Connection


class Administration:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._realm = connection.realm
        self._accounts = AccountRequests(connection)

    def answer(self, message: wire.Request) -> Awaitable[Any]:
        """Do what ``message`` asks. Raises ``RemoteProtocolViolation`` for what is no request of
        this kind."""
        realm = self._realm
        match message:
            case wire.CreateChannel(_, name, definition):
                return realm.create_channel(name, definition)
            case wire.OpenChannel(_, name, kind):
                return realm.open_channel(name, kind)
            case wire.DeleteChannel(_, name, kind):
                return realm.delete_channel(name, kind)
            case wire.EditChannel(_, name, definition):
                return realm.edit_channel(name, definition)
            case wire.ListChannels(_, kind):
                return realm.list_channels(kind)
            case wire.DescribeChannel(_, name, kind):
                return realm.describe_channel(name, kind)
            case wire.MaintainChannel(_, name, kind):
                return realm.maintain(name, kind)
            case _:
                return self._answer_for_stored(message)

    def _answer_for_stored(self, message: wire.Request) -> Awaitable[Any]:
        realm, owner = self._realm, self._connection.owner
        match message:
            case wire.PurgeChannel(_, channel, first, last, selector):
                return realm.subscriptions.purge(channel, first, last, selector)
            case wire.DescribeColumns(_, channel):
                return realm.subscriptions.columns(channel)
            case wire.Locate(_, channel, first, end, publishers):
                return realm.subscriptions.locate(channel, Span(first, end), publishers=publishers)
            case wire.DescribeMissing(_, channel, first, end):
                return missing(realm.shard, channel, Span(first, end))
            case wire.OpenSchedule(_, channel):
                return realm.schedule_of(channel)
            case wire.BeginTransaction(_, transaction, channels):
                return realm.transactions.begin(owned(transaction, owner), channels)
            case wire.AbortTransaction(_, transaction):
                return realm.transactions.abort(owned(transaction, owner))
            case wire.DescribeTransaction(_, transaction):
                return realm.transactions.describe(owned(transaction, owner))
            case _:
                return self._answer_for_realm(message)

    def _answer_for_realm(self, message: wire.Request) -> Awaitable[Any]:
        realm = self._realm
        match message:
            case wire.DescribeRealm():
                return realm.describe(self._connection.listener.version)
            case wire.CreateJoin(_, source, destination, selector, archive):
                return realm.joins.create(
                    source, destination, selector, archive, self._connection.principal
                )
            case wire.DeleteJoin(_, source, destination):
                return realm.joins.delete(source, destination)
            case wire.ListJoins():
                return realm.joins.list()
            case wire.Redrive(_, source, destination, selector, dry_run):
                principal = self._connection.principal
                assert principal is not None, "it was welcomed"
                may = partial(realm.access.require_publish, principal)
                return realm.redrive(source, destination, selector, dry_run=dry_run, may=may)
            case wire.PausePublishing(_, paused):
                return realm.pause(paused)
            case _ if isinstance(message, AccessRequest):
                return self._accounts.answer(message)
            case _:
                raise RemoteProtocolViolation(f"{type(message).__name__} is not expected here")

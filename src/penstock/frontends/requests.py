"""What each request of the native protocol asks of the realm."""

from __future__ import annotations

from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from penstock.columns.selectors import Selector
from penstock.core.errors import InvalidArgument, PenstockError, RemoteProtocolViolation
from penstock.core.ids import Span
from penstock.core.messages import Spans
from penstock.runtime.delivery import Outlet
from penstock.runtime.subscriptions import Opened
from penstock.wire.native import messages as wire
from penstock.wire.native.answers import Published, Subscribed

if TYPE_CHECKING:
    from penstock.frontends.connection import Connection


class Requests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._realm = connection.realm

    def take(self, message: wire.FromClient, body: memoryview) -> None:
        """Do what can be done at once; spawn what has to wait."""
        connection = self._connection
        match message:
            case wire.Settle():
                self._settle(message)
            case wire.StageEvents():
                self._stage(message, body)
            case wire.CommitStages():
                self._commit(message)
            case wire.DropStages(request, stages):
                self._realm.stages.drop(stages)
                connection.send(wire.Done(request))
            case wire.Ping(request):
                connection.send(wire.Done(request))
            case wire.Unsubscribe(request, number):
                self._unsubscribe(request, number)
            case wire.Request():
                connection.spawn(message.request, lambda: self._answer(message))
            case _:
                raise RemoteProtocolViolation(f"{type(message).__name__} is not expected here")

    def _answer(  # noqa: C901  one case a request
        self, message: wire.Request
    ) -> Awaitable[Any]:
        realm = self._realm
        match message:
            case wire.CreateChannel(_, name, definition):
                return realm.create_channel(name, definition)
            case wire.OpenChannel(_, name):
                return realm.open_channel(name)
            case wire.DeleteChannel(_, name):
                return realm.delete_channel(name)
            case wire.EditChannel(_, name, definition):
                return realm.edit_channel(name, definition)
            case wire.ListChannels():
                return realm.list_channels()
            case wire.DescribeChannel(_, name):
                return realm.describe_channel(name)
            case wire.DescribeRealm():
                return realm.describe(self._connection.listener.version)
            case wire.PurgeChannel(_, channel, first, last, selector):
                return realm.subscriptions.purge(channel, first, last, selector)
            case wire.DescribeColumns(_, channel):
                return realm.subscriptions.columns(channel)
            case wire.Locate(_, channel, first, end):
                return realm.subscriptions.locate(channel, Span(first, end))
            case _:
                return self._answer_durable(message)

    def _answer_durable(self, message: wire.Request) -> Awaitable[Any]:
        subscriptions = self._realm.subscriptions
        match message:
            case wire.CreateDurable(_, channel, name, kind, start, selector, persistent):
                return subscriptions.create_durable(
                    channel, name, kind, start, selector, persistent=persistent
                )
            case wire.DeleteDurable(_, channel, name):
                return subscriptions.delete_durable(channel, name)
            case wire.ListDurables(_, channel):
                return subscriptions.durables(channel)
            case wire.DescribeDurable(_, channel, name):
                return subscriptions.durable(channel, name)
            case wire.Subscribe() | wire.Attach() | wire.BrowseDurable():
                return self._open(message)
            case _:
                raise RemoteProtocolViolation(f"{type(message).__name__} is not expected here")

    async def _open(self, message: wire.Subscribe | wire.Attach | wire.BrowseDurable) -> Subscribed:
        from penstock.frontends.connection import Subscription

        connection, subscriptions = self._connection, self._realm.subscriptions
        number = message.subscription
        if number in connection.subscriptions:
            raise InvalidArgument(f"subscription {number} is open already")
        text = "" if isinstance(message, wire.BrowseDurable) else message.selector
        outlet = Subscription(connection, number, Selector(text) if text else None)
        connection.subscriptions[number] = 0
        try:
            opened = await self._opened(message, outlet)
        except BaseException:
            connection.forget(number)
            raise
        if number in connection.subscriptions:
            connection.subscriptions[number] = opened.number
        else:  # the connection was lost, or the subscription ended, while it was being opened
            subscriptions.detach(opened.number)
        return Subscribed(opened.first_id, opened.stop_id)

    def _opened(
        self, message: wire.Subscribe | wire.Attach | wire.BrowseDurable, outlet: Outlet
    ) -> Awaitable[Opened]:
        subscriptions = self._realm.subscriptions
        match message:
            case wire.Subscribe():
                return subscriptions.subscribe(
                    message.channel,
                    message.start,
                    outlet,
                    credit=message.credit,
                    browse=message.browse,
                    last_id=message.last_id,
                )
            case wire.Attach():
                return subscriptions.attach(
                    message.channel,
                    message.durable,
                    outlet,
                    window=message.window,
                    pull=message.pull,
                )
            case wire.BrowseDurable():
                return subscriptions.browse_durable(
                    message.channel, message.durable, outlet, message.credit
                )

    def _unsubscribe(self, request: int, number: int) -> None:
        subscription = self._connection.subscriptions.pop(number, None)
        if subscription is None:
            self._connection.send(wire.Done(request))
            return
        self._realm.subscriptions.detach(subscription, lambda _, error: self._done(request, error))

    def _settle(self, message: wire.Settle) -> None:
        subscription = self._connection.subscriptions.get(message.subscription, 0)
        self._realm.subscriptions.settle(
            subscription,
            _checked(message.spans),
            lambda _, error: self._done(message.request, error),
            roll_back=message.roll_back,
            previous=message.previous,
        )

    def _done(self, request: int, error: BaseException | None) -> None:
        if error is None:
            self._connection.send(wire.Done(request))
        else:
            self._connection.fail(request, error)

    def _stage(self, message: wire.StageEvents, body: memoryview) -> None:
        connection = self._connection
        try:
            bodies = connection.bodies(message.schema, message.sizes, body)
            self._realm.digest(bodies)
            self._realm.stages.put(message.stage, message.channel, bodies)
        except PenstockError as error:
            connection.fail(message.request, error)
        else:
            connection.send(wire.Done(message.request))

    def _commit(self, message: wire.CommitStages) -> None:
        realm, connection = self._realm, self._connection

        def reply(span: Any, error: BaseException | None) -> None:
            if error is None:
                realm.stages.drop(message.stages)
                answer = Published(span[0], span[1] - span[0])
                connection.send(wire.Done(message.request, answer))
            else:
                connection.fail(message.request, error)

        realm.commit(
            message.channel,
            message.stages,
            message.producer,
            message.sequence,
            reply,
            publisher=connection.publisher,
        )


def _checked(spans: Spans) -> Spans:
    for first, end in spans:
        if not 0 <= first < end:
            raise RemoteProtocolViolation(f"a range of ids from {first} to {end}")
    return spans

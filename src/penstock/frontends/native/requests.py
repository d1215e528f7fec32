"""What each request of the native protocol asks of the realm: subscriptions and durables here,
the rest in ``administration`` and ``publications``."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Any

from penstock.api.subscriptions import Subscribed
from penstock.columns.selectors import Selector
from penstock.core.ids.ids import Span
from penstock.core.vocabulary.errors import InvalidArgument, LimitReached, RemoteProtocolViolation
from penstock.frontends.native.administration import Administration
from penstock.frontends.native.deliveries import Subscription
from penstock.frontends.native.publishing import Publications, checked
from penstock.frontends.native.transfers import Transfers
from penstock.runtime.delivery.byte_credit import Room
from penstock.runtime.delivery.delivery import Outlet
from penstock.runtime.subscriptions.subscriptions import Opened
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from penstock.frontends.native.connection import Connection

AT_ONCE = (
    *(wire.PublishEvents, wire.StageEvents, wire.CommitStages, wire.CommitStagedParts),
    *(wire.CommitTransaction, wire.Subscribe, wire.Attach, wire.BrowseDurable),
)
"""Requests that are not answered by a task of their own, and need a right."""


class Requests:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._realm = connection.realm
        self._publications = Publications(connection)
        self._administration = Administration(connection)
        self.transfers = Transfers(connection)

    def take(self, message: wire.Request, body: memoryview) -> None:
        """Do what can be done at once; spawn what has to wait."""
        permits = self._connection.permits
        try:
            if permits is not None and isinstance(message, AT_ONCE):
                permits.check(message)
            self._take(message, body)
        except RemoteProtocolViolation:  # ends the connection
            raise
        except Exception as error:  # noqa: BLE001  what nobody foresaw costs this request alone
            self._connection.fail(message.request, error)

    def _take(  # noqa: C901  one case a message
        self, message: wire.Request, body: memoryview
    ) -> None:
        connection = self._connection
        match message:
            case wire.PublishEvents():
                self._publications.publish(message, body)
            case wire.Settle():
                self._settle(message)
            case wire.StageEvents():
                self._publications.stage(message, body)
            case wire.CommitStages() | wire.CommitStagedParts():
                self._publications.commit_stages(message)
            case wire.CommitTransaction():
                self._publications.commit_transaction(message, body)
            case wire.DropStages():
                self._publications.drop_stages(message)
            case wire.Ping(request):
                connection.send(wire.Done(request))
            case wire.Unsubscribe(request, number):
                self._unsubscribe(request, number)
            case wire.Subscribe() | wire.Attach() | wire.BrowseDurable():
                self._begin(message)
            case wire.Transfer():
                self.transfers.take(message, body)
            case wire.Request():
                permits = connection.permits
                if permits is None:
                    connection.spawn(message.request, lambda: self._answer(message))
                    return
                connection.spawn(
                    message.request,
                    lambda: permits.permitted(message, lambda: self._answer(message)),
                )

    def _answer(self, message: wire.Request) -> Awaitable[Any]:
        subscriptions = self._realm.subscriptions
        match message:
            case wire.CreateDurable():
                return subscriptions.create_durable(
                    message.channel,
                    message.name,
                    message.kind,
                    message.start,
                    message.selector,
                    persistent=message.persistent,
                    max_deliveries=message.max_deliveries,
                    cluster_wide=message.cluster_wide,
                    strict_order=message.strict_order,
                    order_by=message.order_by,
                )
            case wire.DeleteDurable(_, channel, name):
                return subscriptions.delete_durable(channel, name)
            case wire.ListDurables(_, channel):
                return subscriptions.durables(channel)
            case wire.DescribeDurable(_, channel, name):
                return subscriptions.durable(channel, name)
            case wire.PurgeDurable(_, channel, name, first, last, selector):
                return subscriptions.purge_durable(channel, name, first, last, selector)
            case wire.UnbindDurable(_, channel, name):
                return subscriptions.unbind(channel, name)
            case wire.DescribeOutstanding(_, channel, name, first, end):
                return subscriptions.holding.outstanding(channel, name, Span(first, end))
            case wire.Hold(_, number, first, end):
                return subscriptions.holding.hold(self._realms(number), Span(first, end))
            case wire.Bury(_, number, spans, reason):
                return subscriptions.holding.bury(self._realms(number), checked(spans), reason)
            case _:
                return self._administration.answer(message)

    def _realms(self, number: int) -> int:
        """What the realm calls a subscription of this connection."""
        return self._connection.subscriptions.get(number, 0)

    def _begin(self, message: wire.Subscribe | wire.Attach | wire.BrowseDurable) -> None:
        """Known at once by its number: a client may change its mind before it is open."""
        connection, number = self._connection, message.subscription
        if number in connection.subscriptions:
            refusal = InvalidArgument(f"subscription {number} is open already")
            connection.fail(message.request, refusal)
            return
        if number in connection.opening:
            refusal = InvalidArgument(f"subscription {number} is being opened; take another number")
            connection.fail(message.request, refusal)
            return
        try:
            limits = connection.listener.limits.each
            limits.check_subscriptions(len(connection.subscriptions))
        except LimitReached as refused:
            connection.fail(message.request, refused)
            return
        connection.subscriptions[number] = 0
        connection.opening[number] = asyncio.Event()
        if connection.permits is not None:
            connection.permits.opened(message)
        connection.spawn(message.request, lambda: self._open(message))

    async def _open(self, message: wire.Subscribe | wire.Attach | wire.BrowseDurable) -> Subscribed:
        connection = self._connection
        number, text = message.subscription, message.selector
        try:
            await self._seats_given_back(number)
            outlet = Subscription(connection, number, Selector(text) if text else None)
            opened = await self._opened(message, outlet)
            if number in connection.subscriptions:
                connection.subscriptions[number] = opened.number
                connection.check_rights()
            elif number in connection.interrupted and isinstance(message, wire.Subscribe):
                self._realm.subscriptions.lose(opened.number)  # its place is kept (SEM J5)
            else:  # the connection was lost, or the subscription ended, while it was being opened
                await self._given_back(opened.number)
        except BaseException:
            connection.forget(number)
            raise
        finally:
            opened_or_not = connection.opening.pop(number)
            opened_or_not.set()
            connection.listener.given_back(connection.session, opened_or_not)
            connection.opened(number)
        return Subscribed(
            opened.first_id,
            opened.stop_id,
            opened.strict_order,
            opened.confirms,
            opened.cumulative,
        )

    async def _given_back(self, subscription: int) -> None:
        """A seat that nobody wants any more is free when this returns."""
        ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def reply(_: object, error: BaseException | None) -> None:
            if not ended.done():
                ended.set_result(None)  # where it failed, the realm is closed or the channel gone

        self._realm.subscriptions.detach(subscription, reply)
        await ended

    async def _seats_given_back(self, number: int) -> None:
        """A seat that its client does not want any more is given back before another is taken."""
        await self._connection.listener.seats_given_back(self._connection.session)
        for earlier, opened in list(self._connection.opening.items()):
            if earlier == number:
                return  # those after it wait for it, if need be
            if earlier not in self._connection.subscriptions:  # it ended meanwhile
                await opened.wait()

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
                    place=self._place(message.subscription),
                    confirms=message.confirms,
                    deltas=message.deltas,
                    room=_room(message.bytes_max, message.bytes_held),
                )
            case wire.Attach():
                return subscriptions.attach(
                    message.channel,
                    message.durable,
                    outlet,
                    window=message.window,
                    pull=message.pull,
                    auto_ack=message.auto_ack,
                    sole=message.sole,
                )
            case wire.BrowseDurable():
                return subscriptions.browse_durable(
                    message.channel,
                    message.durable,
                    outlet,
                    message.credit,
                    room=_room(message.bytes_max),
                )

    def _place(self, number: int) -> str:
        """What a subscription is known by on the session's next connection (SEM J5). Sessions are
        no secret, so it is its user's alone."""
        principal = self._connection.principal
        assert principal is not None, "it was welcomed"
        return f"{principal.user}/{self._connection.session}/{number}"

    def _unsubscribe(self, request: int, number: int) -> None:
        """Answered when the seat is free, also where it was still being taken."""
        opening = self._connection.opening.get(number)
        subscription = self._connection.forget(number)
        if opening is not None:
            self._connection.spawn(request, lambda: _once(opening))
            return
        if subscription is None:
            self._connection.send(wire.Done(request))
            return
        self._realm.subscriptions.detach(subscription, lambda _, error: self._done(request, error))

    def _settle(self, message: wire.Settle) -> None:
        subscription = self._realms(message.subscription)
        self._realm.subscriptions.settle(
            subscription,
            checked(message.spans),
            lambda _, error: self._done(message.request, error),
            roll_back=message.roll_back,
            previous=message.previous,
        )

    def _done(self, request: int, error: BaseException | None) -> None:
        if error is None:
            self._connection.send(wire.Done(request))
        else:
            self._connection.fail(request, error)


def _room(bytes_max: int, held: int = 0) -> Room | None:
    return Room(bytes_max, held) if bytes_max else None


async def _once(through: asyncio.Event) -> None:
    await through.wait()

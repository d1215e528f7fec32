"""A front end for a protocol of text lines, in a separate package.

``USER name password`` signs in, ``PUB channel text`` publishes, ``SUB channel`` subscribes. Answers
are ``OK``, ``OK id``, ``EVENT channel id text`` and ``ERROR code: reason``. To try it, install it
beside the server, set ``PENSTOCK_LINES_PORT=7000`` for ``penstock serve``, and run
``nc localhost 7000``.
"""

from __future__ import annotations

import asyncio
from typing import Annotated, Final

from msgspec import Meta

from penstock_core.api.publishing import PublishEvents
from penstock_core.api.subscriptions import Subscribe
from penstock_core.columns.events.batch import EventBatch
from penstock_core.columns.events.body import body_of
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_core.vocabulary.start_positions import FromLatest
from penstock_server.frontends.front_end import FrontEnd, HostedService
from penstock_server.frontends.native.hosted_connection import HostedConnection
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.runtime.delivery.delivery import Outlet, Redeliveries
from penstock_server.runtime.operations.callers import Caller
from penstock_server.runtime.operations.door import check_on, find, open_subscription, publish
from penstock_server.runtime.store.bodies import body_from
from penstock_server.runtime.store.outgoing_batch import OutgoingBatch
from penstock_server.settings import Section, Settings

LINE_BYTES_MAX: Final = 1 << 16
CREDIT: Final = 1_000
"""Number of events that a new subscription may deliver at first."""


class LineSettings(Section, frozen=True, kw_only=True):
    """The settings of the front end; ``penstock serve`` reads them like its own."""

    port: Annotated[int | None, Meta(description="Port of lines; not given: no lines.")] = None


class LineConnection(HostedConnection):
    """The connection of one client."""

    protocol = "lines"

    def __init__(self, listener: NativeListener) -> None:
        super().__init__(listener)
        self._data, self._lines = b"", asyncio.Queue[str | None]()
        self._caller: Caller | None = None
        self._outlets: dict[str, LineOutlet] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if self.listener.opened(self):
            self.listener.spawn(self._work)
        else:
            self.end(self.listener.refusal)

    def data_received(self, data: bytes) -> None:
        self.heard_s = self._loop.time()
        *lines, self._data = (self._data + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(line.decode("utf-8", "replace").strip())
        if len(self._data) > LINE_BYTES_MAX:
            self.end(InvalidArgument(f"a line has at most {LINE_BYTES_MAX} bytes"))
        self._reading.data_arrived()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lines.put_nowait(None)
        self._reading.end()
        self.listener.closed(self)

    async def _work(self) -> None:
        """Answer lines in their order until the connection is lost."""
        while (line := await self._lines.get()) is not None:
            try:
                self.say(await self._answer(line.split(" ", 2)))
            except PenstockError as error:
                self.say(f"ERROR {error.code}: {error}")
        for outlet in self._outlets.values():
            self.realm.subscriptions.detach(outlet.subscription)

    async def _answer(self, words: list[str]) -> str:
        """Execute a request, and return its answer. Raises ``PenstockError``."""
        access = self.realm.access
        if words[0] == "USER" and len(words) == 3:
            is_secure = self.listener.tls is not None
            user = await access.password(words[1], words[2], self.host, secure=is_secure)
            self._caller = self.sign_in(user)
            return "OK"
        # A client that has not signed in is an anonymous user, if the realm allows that.
        caller = self._caller = self._caller or self.sign_in(access.anonymous(self.host))
        match words:
            case ["PUB", channel, text]:
                store = await find(caller, "channel", channel, request_type=PublishEvents)
                body = body_from(body_of([Event(text.encode())]))
                return f"OK {(await publish(caller, store.channel, [body])).first_id}"
            case ["SUB", channel] if channel not in self._outlets:
                store = await find(caller, "channel", channel, request_type=Subscribe)
                asked = Subscribe(store.channel, 0, start=FromLatest(), credit=CREDIT)
                outlet = LineOutlet(self, caller, channel)
                outlet.subscription = (await open_subscription(caller, asked, outlet)).number
                self._outlets[channel] = outlet
                return "OK"
        raise InvalidArgument("send USER name password, PUB channel text, or SUB channel once")

    def say(self, line: str) -> None:
        """Send a line, unless the connection is lost."""
        if self._transport is not None:
            self._transport.write(f"{line}\n".encode())

    def check_rights(self) -> None:
        """End the connection if its user has lost a right that it uses; called after each change of
        rights."""
        try:
            if self._caller is not None:
                self.realm.access.check_still(self.principal, self.realm.clock.now_us())
            for outlet in self._outlets.values():
                check_on(outlet.caller, "channel", outlet.channel, request_type=Subscribe)
        except PenstockError as error:
            self.end(error)

    def end(self, reason: PenstockError | None) -> None:
        """Send the reason, and close the connection."""
        if self._transport is not None:
            self.say("" if reason is None else f"ERROR {reason.code}: {reason}")
            self._transport.close()


class LineOutlet(Outlet):
    """The receiving end of one subscription."""

    selector = None
    is_writable = True
    subscription = owed = 0

    def __init__(self, connection: LineConnection, caller: Caller, channel: str) -> None:
        self._connection, self.caller, self.channel = connection, caller, channel
        self.session = caller.session

    def deliver(self, rows: OutgoingBatch, redeliveries: Redeliveries) -> None:
        for event in EventBatch(rows.batch, publishers=rows.publishers):
            text = event.data.decode("utf-8", "replace")
            self._connection.say(f"EVENT {self.channel} {event.event_id} {text}")
        self.owed += rows.batch.num_rows
        # The first events may come before the number of the subscription is known here.
        if self.subscription:
            self.caller.realm.subscriptions.credit(self.subscription, self.owed)
            self.owed = 0

    def closed(self, reason: PenstockError) -> None:
        self._connection.end(reason)


class LineFrontEnd(FrontEnd):
    """The front end. The server finds its object by the entry point in ``pyproject.toml``."""

    name = "lines"
    schemes = ("lines://", "liness://")

    def service(self, listener: NativeListener, settings: Settings) -> HostedService:
        return HostedService(listener, LineConnection)


FRONT_END: Final = LineFrontEnd()

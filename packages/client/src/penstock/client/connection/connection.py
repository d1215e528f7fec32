"""The connection of a session to its realm. It reconnects after a loss, and sends those requests
again that are safe to repeat.

The public class is :class:`penstock.client.handles.session.Session`, which uses a connection.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import uuid
from collections.abc import Callable, Container, Sequence
from typing import Any, TypeVar

import msgspec
import pyarrow as pa

from penstock.client.connection.arguments import Duration, wait_s
from penstock.client.connection.credentials import Token
from penstock.client.connection.delivery_route import DeliveryRoute
from penstock.client.connection.owner_watch import OwnerWatch
from penstock.client.connection.pending import (
    ALL_TAKEN,
    OPENINGS,
    AnswerFuture,
    Body,
    Pending,
    end_of,
    error_of,
    is_lost,
    no_connection,
    no_realm,
    reason_of,
    reject,
)
from penstock.client.connection.replier import Replier
from penstock.client.connection.session_listeners import SessionListeners
from penstock.client.connection.signing_in import SigningIn
from penstock.client.connection.terms import DEAD_AFTER_S, NO_REASON_RETRY_S, SessionTerms
from penstock.client.connection.transport import Link
from penstock.client.connection.urls import Address, RealmUrl
from penstock_core.api.publishing import CommitStagedParts, CommitStages, PublishEvents
from penstock_core.api.realm import Ping
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Bury, Extend, Settle, Unsubscribe
from penstock_core.api.transactions import CommitTransaction
from penstock_core.columns.events.single_event import SingleEventCodec
from penstock_core.columns.schema.ipc import schema_bytes
from penstock_core.columns.schema.schema_cache import SchemaMemo
from penstock_core.display import safe_repr
from penstock_core.printable import on_one_line
from penstock_core.tasks import start_task
from penstock_core.vocabulary.errors import (
    AccessDenied,
    AuthenticationFailed,
    CannotConnect,
    ConnectionLost,
    PenstockError,
    SessionClosed,
)
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.asking import check_request

T = TypeVar("T")

Connector = Callable[[Callable[[], Link]], Any]

RECONNECT_TIMEOUT_S = 60.0
"""Default time, in seconds, during which a session tries to reconnect."""
CLOSE_TIMEOUT_S = 5.0
"""Seconds that closing a session waits for a silent realm after all answers have arrived."""

_CHANGES = (Settle, PublishEvents, CommitStages, CommitStagedParts, CommitTransaction, Bury, Extend)
"""Requests whose answers :meth:`RealmConnection.close` waits for, because they change the realm."""


class RealmConnection:
    """The requests and subscriptions of a session, over one network connection at a time."""

    def __init__(
        self,
        url: RealmUrl,
        *,
        reconnect_timeout: Duration = RECONNECT_TIMEOUT_S,
        connector: Connector | None = None,
        token: Token | None = None,
        terms: SessionTerms | None = None,
    ) -> None:
        """``reconnect_timeout`` is in seconds; with 0 each address is tried once. ``terms`` replace
        the default timeouts. Raises ``InvalidArgument``."""
        self.session_id = uuid.uuid4().hex
        self._url = url
        self.place = f"{url}"
        self._signing_in = SigningIn(url, token)
        self._connector = connector
        self._reconnect_timeout_s = wait_s(reconnect_timeout, "reconnect_timeout")
        self.link: Link | None = None
        self._welcome: wire.Welcome | None = None
        self._next_request = 1
        self._next_subscription = 1
        self.pending: dict[int, Pending] = {}
        self._incoming: dict[int, DeliveryRoute] = {}
        self._reopened_ids: set[int] | None = None
        """Numbers of the subscriptions that were requested on the new connection; None unless
        subscriptions are being opened again after a reconnect."""
        self._schemas: list[bytes] = []
        self._schema_numbers = SchemaMemo(self._number_schema)
        self._codec_schema_ids: dict[SingleEventCodec, int] = {}
        self._greeting: asyncio.Future[wire.Welcome] | None = None
        self._lost = asyncio.Event()
        self._answered = asyncio.Event()
        """Set when an answer arrives, and when the connection is lost."""
        self._online = asyncio.Event()
        self._supervisor: asyncio.Task[None] | None = None
        self._closed: PenstockError | None = None
        self._farewell: PenstockError | None = None
        """The realm's reason for ending the connection, if it sent one."""
        self._last_begun_request = ALL_TAKEN
        """The highest number of a request that the realm may have begun to execute."""
        self.listeners = SessionListeners()
        self.reconnects = 0
        self.replier: Replier | None = None
        """Sends replies to received events; set by the session."""
        self.requester: object = None
        """Sends requests and waits for their replies; set by the session."""
        self.failures: dict[Address, Exception] = {}
        """The error of each address in the last round of attempts to connect."""
        self.terms = terms or SessionTerms()
        """Timeouts of the session, and the address that it is connected to."""
        self._watch = OwnerWatch(self.terms, self._signing_in.tls, self._leave)

    # --- opening and closing -------------------------------------------------------------

    async def open(self) -> None:
        """Connect to the realm and keep the connection up from then on.

        Raises ``CannotConnect`` at the first failed attempt, with two exceptions: it tries again
        while a node of a cluster answers that a node will serve soon, and for one second after the
        call if a connection was closed without a reason.
        """
        now, terms = asyncio.get_running_loop().time, self.terms
        until = now() + NO_REASON_RETRY_S
        await self._connect(
            lambda: terms.serves_soon or (terms.was_closed_without_reason and now() < until)
        )
        self._supervisor = start_task(
            self._stay_connected(), name="penstock-session", on_failure=self._break
        )

    async def close(self) -> None:
        """End the session. Settlements that were sent take effect; all other delivered events
        return to their durables (SEM D13).

        Waits without a time limit until the realm has confirmed the settlements in transit. Raises
        ``ConnectionLost`` if the connection is lost before: the events may then be delivered
        again. Closing a closed session does nothing.
        """
        if self._closed is None:
            # First, because this step sends requests, which a closed session refuses.
            for incoming in self._incoming.values():
                incoming.hurry()
            self._closed = SessionClosed("the session is closed")
        self._watch.end()
        self._end_incoming(self._closed)
        # If the event loop ends, the task itself calls this method; it cannot wait for itself.
        if self._supervisor is not None and self._supervisor is not asyncio.current_task():
            self._supervisor.cancel()
            await asyncio.wait([self._supervisor])
        self._supervisor = None
        try:
            await self._wait_for_confirmations()
        finally:
            await self._say_goodbye()

    async def _wait_for_confirmations(self) -> None:
        """Wait until the realm has answered all requests that change it.

        Raises ``ConnectionLost`` if the connection is lost before all settlements are answered.
        """
        changes = [
            request for request in self.pending.values() if isinstance(request.message, _CHANGES)
        ]
        was_connected = self.link is not None and self.link.is_open
        while was_connected and self.link is not None:
            if not any(request.sent and not request.answer.done() for request in changes):
                return
            self._answered.clear()
            try:
                async with asyncio.timeout(self.terms.ping_after_s):
                    await self._answered.wait()
            except TimeoutError:
                # The task that otherwise pings has ended. A dead connection must end the wait.
                self._ping()
        answers = [request.answer for request in changes if isinstance(request.message, Settle)]
        unknown = [answer for answer in answers if not answer.done() or is_lost(answer)]
        if unknown:
            lost = ConnectionLost(
                f"the connection was lost before the realm had confirmed {len(unknown)} "
                "settlements; their events may be delivered again"
            )
            for answer in unknown:
                reject(answer, lost)
            raise lost

    async def _say_goodbye(self) -> None:
        """Send Bye, and read until the realm closes the connection. If the client closed it at
        once, the network stack could discard data in transit."""
        link, self.link = self.link, None
        self._online.clear()
        assert self._closed is not None, "close has set it"
        self._fail_all(self._closed)
        if link is None or not link.is_open:
            return
        link.send(wire.Bye())
        link.finish()
        try:
            await link.wait_closed(CLOSE_TIMEOUT_S)
        except BaseException:
            link.abort()
            raise

    def report(self, error: PenstockError) -> None:
        """Report an error that no call can raise to the error listeners."""
        self.listeners.report(error)

    @safe_repr
    def __repr__(self) -> str:
        return f"<RealmConnection {self.standing}>"

    @property
    def standing(self) -> str:
        """The address of the realm and what is wrong with the connection, for the ``repr`` of
        handles."""
        state = ", closed" if self.is_closed else "" if self.is_connected else ", reconnecting"
        return f"at {on_one_line(self.place)}{state}"

    @property
    def subscription_count(self) -> int:
        """Number of open subscriptions, seats and watches."""
        return len(self._incoming)

    @property
    def event_bytes_max(self) -> int:
        """Size in bytes of the largest event that the realm accepts (SEM E7). Before the first
        connection, the largest size that any realm accepts by default."""
        return self._welcome.event_bytes_max if self._welcome else 20 << 20

    @property
    def realm_id(self) -> str:
        """Identity of the realm, which restarts do not change; empty before the first
        connection."""
        return self._welcome.realm if self._welcome else ""

    async def _connect_once(self) -> None:
        """Try each address once. Raises ``CannotConnect`` with the failure of each address."""
        failures = self.failures = {}
        for address in self.terms.places(self._url.addresses):
            try:
                # `asyncio.wait_for` could swallow the cancellation by close().
                async with asyncio.timeout(self.terms.connect_timeout_s):
                    await self._connect_to(address)
            except (AuthenticationFailed, AccessDenied):
                raise  # another address, or a later attempt, would give the same answer
            except (OSError, PenstockError, TimeoutError) as error:
                failures[address] = error
            else:
                return
        raise no_realm(f"{address}: {reason_of(error)}" for address, error in failures.items())

    async def _connect_to(self, address: Address) -> None:
        """Connect to an address, sign in, and send the pending requests again."""
        loop = asyncio.get_running_loop()
        self._greeting = loop.create_future()
        self._farewell, self._last_begun_request = None, ALL_TAKEN
        self._lost.clear()
        if self._connector is not None:
            link: Link = await self._connector(lambda: Link(self))
        else:
            _, link = await loop.create_connection(
                lambda: Link(self), address.host, address.port, ssl=self._signing_in.tls
            )
        self.link = link
        try:
            await self._signing_in.say_hello(
                link, address, self.session_id, greeting=self._greeting
            )
            welcome = self._check_realm(await self._greeting)
        except BaseException:
            self.link = None
            link.abort()
            raise
        self._welcome = welcome
        if self.terms.process_welcome(welcome):
            link.send(wire.Follow())
        # No await until the session is online: new requests must not overtake the pending ones.
        for number, pending in list(self.pending.items()):
            if pending.answer.done() and not pending.sent:
                del self.pending[number]  # the caller was cancelled before the request was sent
            else:
                self.send(pending)
        self._online.set()
        self.listeners.report_resumption()

    def _check_realm(self, welcome: wire.Welcome) -> wire.Welcome:
        """Return the welcome. Raises ``CannotConnect`` if it is that of another realm, and
        ``Elsewhere`` if the session should connect to another node."""
        # Another realm would have other events under the ids that this session knows.
        if self._welcome is not None and self._welcome.realm != welcome.realm:
            raise CannotConnect("a different realm answers at this address now")
        return self.terms.accept(welcome)

    async def _stay_connected(self) -> None:
        """Ping the realm while the connection is open, and reconnect after a loss, until the
        session ends."""
        try:
            while True:
                try:
                    async with asyncio.timeout(self.terms.check_after_s(self._silence_s)):
                        await self._lost.wait()
                except TimeoutError:
                    self._ping()
                    continue
                await self._reconnect()
        except PenstockError as error:
            self._end(error)
        except asyncio.CancelledError:
            # The event loop ends, and the program has not closed the session.
            if self._closed is None:
                await self.close()
            raise

    def _end(self, error: PenstockError) -> None:
        """End the session because of an error, which all waiting and later calls raise."""
        self._closed = error
        self._watch.end()
        self._fail_all(error)
        self.report(error)

    def _break(self, error: BaseException) -> None:
        """End the session after an unexpected error while reconnecting, such as one of the
        program's function for tokens. Otherwise its calls would wait forever."""
        ended = SessionClosed(f"the session cannot connect again: {error!r}")
        ended.__cause__ = error
        self._end(ended)

    @property
    def _silence_s(self) -> float:
        """Seconds since data was last received on the connection."""
        link = self.link
        return 0.0 if link is None else asyncio.get_running_loop().time() - link.heard_s

    def _leave(self) -> None:
        """Drop the connection, so that the session connects to the new owner of the realm."""
        if self.link is not None and self._online.is_set():
            self.link.abort()

    def _ping(self) -> None:
        """Send a ping, or drop the connection if the realm has been silent for too long."""
        link = self.link
        if link is None:
            return
        if self.terms.is_silent(self._silence_s):
            link.abort()
        elif self._online.is_set():
            # Sent also while events arrive: the realm needs a sign that the client is alive.
            link.send(wire.Asked(0, Ping()))

    async def _connect(self, may_try_again: Callable[[], bool]) -> None:
        """Try to connect until an attempt succeeds.

        Raises ``CannotConnect`` when ``reconnect_timeout`` has passed or ``may_try_again`` returns
        False.
        """
        now = asyncio.get_running_loop().time
        begun_s = now()
        for attempt in itertools.count():
            try:
                return await self._connect_once()
            except CannotConnect:
                waited_s = now() - begun_s
                if waited_s >= self._reconnect_timeout_s or not may_try_again():
                    raise
                await asyncio.sleep(self.terms.pause_s(self.session_id, attempt, waited_s))

    async def _reconnect(self) -> None:
        """Connect again after a loss, and open the subscriptions again."""
        self._reopened_ids = set()
        try:
            await self._connect(lambda: True)
        except CannotConnect as error:
            ending = CannotConnect(f"the connection was lost, and {error}")
            raise self.listeners.ended_by(ending) from error
        self.reconnects += 1
        await self.open_again(self._reopened_ids)
        self._reopened_ids = None

    async def open_again(self, requested: Container[int]) -> None:
        """Open all subscriptions again, except those with numbers in ``requested``: a waiting call
        has already requested them on this connection."""
        for number, incoming in list(self._incoming.items()):
            # A call may have removed the subscription while another one was being opened.
            if number in requested or number not in self._incoming:
                continue
            try:
                async with asyncio.timeout(DEAD_AFTER_S):
                    await incoming.reopen()
            except ConnectionLost:
                return  # after the next reconnect all subscriptions are opened again
            except TimeoutError:
                # The realm answers pings but not this request. A new connection starts afresh.
                if self.link is not None:
                    self.link.abort()
                return
            except PenstockError as error:
                self._incoming.pop(number, None)
                incoming.failed(error)

    # --- Receiver ------------------------------------------------------------------------

    def received(  # noqa: C901, PLR0912  one case for each message
        self, link: Link, message: wire.FromServer, body: memoryview
    ) -> None:
        """Pass a message of the realm to the request or subscription that it belongs to."""
        # Late messages of an earlier connection are dropped.
        if link is not self.link and not isinstance(message, wire.Welcome):
            return
        match message:
            case wire.Done(request, answer):
                self._answered.set()
                pending = self.pending.pop(request, None)
                if pending is not None and not pending.answer.done():
                    pending.answer.set_result(answer)
            case wire.Delivery(number, schema):
                if incoming := self._incoming.get(number):
                    incoming.delivered(message, link.schemas[schema], body)
            case wire.Failed(request, code, text):
                self._answered.set()
                if pending := self.pending.pop(request, None):
                    reject(pending.answer, error_of(code, text))
            case wire.Recalled(number, spans):
                if incoming := self._incoming.get(number):
                    incoming.recalled(spans)
            case wire.ChannelsFound(number, channels):
                if incoming := self._incoming.get(number):
                    incoming.channels_found(channels)
            case wire.Finished(number):
                if incoming := self._incoming.get(number):
                    incoming.finished()
            case wire.Closed(number, code, text):
                if incoming := self._incoming.pop(number, None):
                    incoming.failed(error_of(code, text))
            case wire.Challenge(data):
                self._signing_in.receive_challenge(data)
            case wire.Welcome():
                if self._greeting is not None and not self._greeting.done():
                    self._greeting.set_result(message)
            case wire.Goodbye():
                self._process_goodbye(message)
            case wire.Owners():
                self.terms.process_owners(message)
                self._watch.begin()
            case wire.Schema():
                pass  # the link has stored it

    def _process_goodbye(self, message: wire.Goodbye) -> None:
        """Record why the realm ends the connection."""
        self._farewell = error_of(message.code, message.text)
        self._report_interruption(message.text)
        self.terms.process_goodbye(message)
        if isinstance(message, wire.Parting):
            self._last_begun_request = message.taken
        if self._greeting is not None and not self._greeting.done():
            self._greeting.set_exception(self._farewell)
            # Marked as retrieved: the waiting task may have been cancelled, and asyncio would warn.
            self._greeting.exception()

    def _report_interruption(self, reason_text: str) -> None:
        """Report an interruption to the listeners. A session that is opening or closing has none:
        its call raises the error."""
        if self._closed is None and self._supervisor is not None:
            self.listeners.report_interruption(self._farewell, reason_text)

    def lost(self, link: Link, reason: BaseException | None) -> None:
        """End the requests that cannot be repeated, and notify all subscriptions of the loss."""
        if link is not self.link:
            return
        self.link = None
        self._online.clear()
        reason_text = reason_of(reason or self._farewell)
        self._report_interruption(reason_text)
        if self._greeting is not None and not self._greeting.done():
            self.terms.was_closed_without_reason |= reason is None or isinstance(reason, OSError)
            self._greeting.set_exception(ConnectionLost(f"the connection was lost ({reason_text})"))
            self._greeting.exception()
        for request, pending in list(self.pending.items()):
            error = end_of(pending, self._farewell, reason_text, taken=self._last_begun_request)
            if error is not None:
                reject(self.pending.pop(request).answer, error)
        for incoming in list(self._incoming.values()):
            incoming.lost()
        self._lost.set()
        self._answered.set()

    def _fail_all(self, error: PenstockError) -> None:
        """End all requests and subscriptions with ``error``."""
        pendings, self.pending = list(self.pending.values()), {}
        for pending in pendings:
            reject(pending.answer, error)
        self._end_incoming(error)

    def _end_incoming(self, error: PenstockError) -> None:
        incomings, self._incoming = list(self._incoming.values()), {}
        for incoming in incomings:
            incoming.failed(error)

    # --- requests ------------------------------------------------------------------------

    def request(
        self,
        message: Request[Any],
        bodies: Sequence[Body] = (),
        *,
        schemas: tuple[int, ...] = (),
        resend: bool = True,
        waits: bool = True,
    ) -> asyncio.Future[Any]:
        """Send a request, and return a future of its answer.

        - ``schemas``: the numbers of the schemas of ``bodies`` (:meth:`schema_number`)
        - ``resend``: whether the request is sent again on the next connection if this one is lost
        - ``waits``: whether the request, while the session is not connected, waits for the next
          connection. A request that belongs to the lost connection must not wait; its answer is
          then ``ConnectionLost``

        Raises ``InvalidArgument`` immediately if no realm could read the message.
        """
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self.request_for(answer, message, bodies, schemas=schemas, resend=resend, waits=waits)
        return answer

    def request_for(
        self,
        answer: AnswerFuture,
        message: Request[Any],
        bodies: Sequence[Body] = (),
        schemas: tuple[int, ...] = (),
        *,
        resend: bool = True,
        waits: bool = True,
    ) -> None:
        """Send a request as :meth:`request` does, and pass its answer to ``answer``."""
        if self._closed is not None:
            answer.set_exception(self._closed)
            return
        # All other messages consist of values that have already been checked; a check would cost
        # time.
        if waits and not bodies:
            check_request(message)
        number = self._next_request
        self._next_request += 1
        pending = Pending(
            number, message, bodies, schemas=schemas, answer=answer, resend=resend, waits=waits
        )
        self.pending[number] = pending
        if self.link is not None and self._online.is_set():
            self.send(pending)
        elif not waits or self.is_reopening:
            del self.pending[number]
            reject(answer, no_connection())

    @property
    def is_closed(self) -> bool:
        return self._closed is not None

    @property
    def is_connected(self) -> bool:
        """Whether the session is connected now."""
        return self._online.is_set()

    @property
    def is_reopening(self) -> bool:
        """Whether the current task is the one that reconnects. That task must not wait for the next
        connection, which it has to make itself."""
        return self._supervisor is not None and asyncio.current_task() is self._supervisor

    async def ask(
        self, message: Request[Any], answer: type[T], *, resend: bool = True, waits: bool = True
    ) -> T:
        """Send a request, and return its answer converted to the type ``answer``."""
        fields = await self.request(message, resend=resend, waits=waits)
        return msgspec.convert(fields, answer)

    def hurry(self) -> None:
        """Send the queued request immediately instead of at the end of this turn of the event loop,
        if it is the only pending request. Several requests are better written together."""
        if self.link is not None and len(self.pending) == 1:
            self.link.flush()

    def tell(self, message: wire.Message) -> None:
        """Send a message that has no answer. It is dropped while the session is not connected."""
        if self.link is not None and self._online.is_set():
            self.link.send(message)

    def send(self, pending: Pending) -> None:
        """Send a request, after those of its schemas that were not yet sent on this connection."""
        link = self.link
        if link is None:
            return
        pending.sent = True
        if self._reopened_ids is not None and isinstance(pending.message, OPENINGS):
            self._reopened_ids.add(pending.message.subscription)
        for schema in pending.schemas:
            if schema not in link.announced:
                link.announced.add(schema)
                link.send(wire.Schema(schema), self._schemas[schema])
        link.send(wire.Asked(pending.number, pending.message), *pending.bodies)

    async def drain(self) -> None:
        """Wait until the write buffer of the connection has room."""
        link = self.link
        if link is not None and not link.is_drained:
            await link.drain()

    # --- schemas and subscriptions -------------------------------------------------------

    def schema_number(self, schema: pa.Schema) -> int:
        """Return the number that stands for a schema in requests of this session."""
        return self._schema_numbers.of(schema)

    def row_number(self, codec: SingleEventCodec) -> int:
        """Return the number of the schema of a codec for single events."""
        # A lookup by codec is faster than one by schema; publishing single events needs it.
        number = self._codec_schema_ids.get(codec)
        if number is None:
            number = self._codec_schema_ids[codec] = self.schema_number(codec.schema)
        return number

    def _number_schema(self, schema: pa.Schema) -> int:
        """Assign the next number to a new schema and return it."""
        self._schemas.append(schema_bytes(schema))
        return len(self._schemas) - 1

    def add(self, incoming: DeliveryRoute) -> int:
        """Register a subscription and return its number."""
        number = self._next_subscription
        self._next_subscription += 1
        self._incoming[number] = incoming
        return number

    def remove(self, number: int) -> None:
        self._incoming.pop(number, None)

    async def unsubscribe(self, number: int) -> None:
        self.remove(number)
        # The end of a session has ended its subscriptions, so there is nothing left to do.
        with contextlib.suppress(SessionClosed):
            await self.request(Unsubscribe(number))

    def give_up(self, number: int, error: BaseException) -> None:
        """Remove a subscription that could not be opened because of ``error``."""
        self.remove(number)
        # The realm does not have the subscription after it refused it, but it may have it after the
        # call was cancelled.
        if not isinstance(error, PenstockError) and self._closed is None:
            self.request(Unsubscribe(number), resend=False)

"""One connection to the servers of a NATS cluster: a question, and its answer or none."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from ssl import SSLContext, SSLError
from typing import Any, Final, TypeVar

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoServersError, StaleConnectionError

from penstock_cluster.storage.jetstream.asking import AskingClient, Unanswered
from penstock_core.vocabulary.errors import NoQuorum, Unavailable
from penstock_core.vocabulary.uris import shown, without_secrets

T = TypeVar("T")

ANSWER_TIMEOUT_S: Final = 2.0
UNDER_WAY_MAX: Final = 32
"""Reads that wait for an answer at a time."""
_OPEN_TIMEOUT_S: Final = 15.0
_PENDING_BYTES_MAX: Final = 64 << 20
_RECONNECT_WAIT_S: Final = 0.1
_PING_INTERVAL_S: Final = 2
"""A server that is frozen keeps its connections open: only pings tell."""
_SERVED_LATER: Final = frozenset({408, 500, 503})
"""Kinds of error that say nothing about the request: it may be answered when it is made again."""
NO_CLUSTER: Final = 10074
"""The error of a server that is alone, and of a kind that looks as if it would pass."""


class JetStreamRefusal(Exception):
    """An error of JetStream, by its number."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{text} (JetStream error {number})")
        self.number = number


class _Error(Struct):
    code: int = 0
    err_code: int = 0
    description: str = ""


class _Answer(Struct):
    error: _Error | None = None


_answers: Final = msgspec.json.Decoder(_Answer)


def _is_news(record: logging.LogRecord) -> bool:
    """Each end of a connection with TLS would be told, because nats-py reads from a stream that
    does not know of the TLS below it."""
    return "eof_received() has no effect when using ssl" not in record.getMessage()


def _is_passing(failure: Exception) -> bool:
    """Whether a connection that failed so may succeed later: nobody listens, or nobody answers."""
    unreachable = isinstance(failure, OSError | NoServersError | StaleConnectionError)
    return unreachable and not isinstance(failure, SSLError)


class NatsConnection:
    """Asks servers by subject. Reconnects by itself, to whichever server answers."""

    def __init__(self, client: AskingClient) -> None:
        self._client = client

    @classmethod
    async def open(
        cls,
        servers: Sequence[str],
        on_reconnect: Callable[[], Awaitable[None]],
        timeout_s: float = _OPEN_TIMEOUT_S,
        *,
        tls: SSLContext | None = None,
    ) -> NatsConnection:
        """Connect to one of the servers, by ``tls`` where they want that. Raises ``NoQuorum`` when
        none can be reached, and ``Unavailable`` when they refuse the connection."""
        if tls is not None:
            logging.getLogger("asyncio").addFilter(_is_news)
        client = AskingClient()
        failures: list[Exception] = []

        async def note(error: Exception) -> None:
            failures[:] = [error]

        try:
            async with asyncio.timeout(timeout_s):
                await client.connect(
                    list(servers),
                    name="penstock",
                    tls=tls,
                    error_cb=note,
                    reconnected_cb=on_reconnect,
                    connect_timeout=int(ANSWER_TIMEOUT_S),
                    reconnect_time_wait=_RECONNECT_WAIT_S,  # type: ignore[arg-type]  # it only sleeps
                    max_reconnect_attempts=-1,
                    ping_interval=_PING_INTERVAL_S,
                    pending_size=_PENDING_BYTES_MAX,
                )
                await client.listen()
        except asyncio.CancelledError:
            await client.close()
            raise
        except (TimeoutError, NatsError, OSError) as error:
            await client.close()
            failure = failures[0] if failures else error
            reason = str(failure)
            for server in servers:
                reason = without_secrets(reason, server)
            # A server that refuses who asks will do so again; one that is down may come back.
            kind = NoQuorum if _is_passing(failure) else Unavailable
            raise kind(
                f"no server of the engine answers at {', '.join(map(shown, servers))}: {reason}"
            ) from None
        return cls(client)

    @property
    def payload_max(self) -> int:
        """Bytes that a server takes in one message."""
        return self._client.max_payload

    @property
    def server(self) -> str:
        """The name of the server it is connected to; empty while there is none."""
        return self._client.server

    async def ask(
        self, subject: str, request: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """The answer. Raises ``Unanswered``, and ``JetStreamRefusal`` when the answer is no."""
        data = await self._client.ask(subject, request, headers, ANSWER_TIMEOUT_S)
        refused = _answers.decode(data).error
        if refused is None:
            return data
        refusal = JetStreamRefusal(refused.err_code, refused.description)
        if refused.code in _SERVED_LATER and refused.err_code != NO_CLUSTER:
            raise Unanswered(f"{subject}: {refusal}")
        raise refusal

    async def follow(self, stream: str, subject: str, take: Callable[[Msg], None]) -> None:
        """Call ``take`` with messages that are stored from now on; some may be left out. Raises
        ``Unanswered``."""
        from nats.js.api import DeliverPolicy

        async def taken(message: Msg) -> None:
            take(message)

        try:
            await self._client.jetstream(timeout=ANSWER_TIMEOUT_S).subscribe(
                subject,
                stream=stream,
                cb=taken,
                ordered_consumer=True,
                deliver_policy=DeliverPolicy.NEW,
            )
        except (NatsError, OSError) as error:
            raise Unanswered(f"{subject}: {error!r}") from error

    async def close(self) -> None:
        await self._client.close()


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """The results of calls that wait at the same time. The first failure ends all of them, and is
    raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]

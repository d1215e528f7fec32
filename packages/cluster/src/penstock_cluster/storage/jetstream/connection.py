"""One connection to the servers of a NATS cluster, which sends requests and returns answers."""

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
"""Seconds after which a request counts as unanswered."""
UNDER_WAY_MAX: Final = 32
"""Maximum number of concurrent reads that wait for an answer."""
_OPEN_TIMEOUT_S: Final = 15.0
"""Longest wait for a first connection, in seconds."""
_PENDING_BYTES_MAX: Final = 64 << 20
"""Maximum number of bytes that wait to be written."""
_RECONNECT_WAIT_S: Final = 0.1
"""Pause between two attempts to reconnect, in seconds."""
_PING_INTERVAL_S: Final = 2
"""Seconds between two pings. A frozen server keeps its connections open, so only pings detect
it."""
_SERVED_LATER: Final = frozenset({408, 500, 503})
"""Error codes that do not concern the request: it may succeed when it is repeated."""
NO_CLUSTER: Final = 10074
"""Error of a server without a cluster. Its code looks like a temporary error."""


class JetStreamRefusal(Exception):
    """Raised for a request that JetStream refuses; ``number`` is the number of its error."""

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


def _is_informative(record: logging.LogRecord) -> bool:
    """Return False for the message of asyncio about each end of a TLS connection, because nats-py
    reads from a stream that does not know of the TLS below it."""
    return "eof_received() has no effect when using ssl" not in record.getMessage()


def _is_temporary(failure: Exception) -> bool:
    """Return whether a connection that failed like this may succeed later: its server is down or
    does not answer."""
    unreachable = isinstance(failure, OSError | NoServersError | StaleConnectionError)
    return unreachable and not isinstance(failure, SSLError)


class NatsConnection:
    """Sends requests to servers by subject. Reconnects by itself, to any server that answers."""

    def __init__(self, client: AskingClient, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._client = client
        self._answer_timeout_s = answer_timeout_s

    @classmethod
    async def open(
        cls,
        servers: Sequence[str],
        on_reconnect: Callable[[], Awaitable[None]],
        timeout_s: float = _OPEN_TIMEOUT_S,
        *,
        answer_timeout_s: float = ANSWER_TIMEOUT_S,
        tls: SSLContext | None = None,
    ) -> NatsConnection:
        """Connect to one of the servers, with ``tls`` if they require it. Raises ``NoQuorum`` if
        none can be reached, and ``Unavailable`` if they refuse the connection."""
        if tls is not None:
            logging.getLogger("asyncio").addFilter(_is_informative)
        client = AskingClient()
        failures: list[Exception] = []

        # nats-py reports the reasons only here, and then raises a general error.
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
                    connect_timeout=int(answer_timeout_s),
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
            # A server that refuses this client will do so again; one that is down may come back.
            kind = NoQuorum if _is_temporary(failure) else Unavailable
            raise kind(
                f"no server of the engine answers at {', '.join(map(shown, servers))}: {reason}"
            ) from None
        return cls(client, answer_timeout_s)

    @property
    def payload_max(self) -> int:
        """Maximum size of a message in bytes."""
        return self._client.max_payload

    @property
    def server(self) -> str:
        """Name of the connected server; empty without a connection."""
        return self._client.server

    async def ask(
        self, subject: str, request: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        """Send a request and return its answer. Raises ``Unanswered``, and ``JetStreamRefusal`` for
        an error."""
        data = await self._client.ask(subject, request, headers, self._answer_timeout_s)
        error = _answers.decode(data).error
        if error is None:
            return data
        refusal = JetStreamRefusal(error.err_code, error.description)
        if error.code in _SERVED_LATER and error.err_code != NO_CLUSTER:
            raise Unanswered(f"{subject}: {refusal}")
        raise refusal

    async def follow(self, stream: str, subject: str, on_message: Callable[[Msg], None]) -> None:
        """Call ``on_message`` with messages that are stored from now on; some may be left out.
        Raises ``Unanswered``."""
        from nats.js.api import DeliverPolicy

        async def receive(message: Msg) -> None:
            on_message(message)

        try:
            await self._client.jetstream(timeout=self._answer_timeout_s).subscribe(
                subject,
                stream=stream,
                cb=receive,
                ordered_consumer=True,
                deliver_policy=DeliverPolicy.NEW,
            )
        except (NatsError, OSError) as error:
            raise Unanswered(f"{subject}: {error!r}") from error

    async def close(self) -> None:
        await self._client.close()


async def together(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Return the results of calls that run concurrently. The first failure cancels the others and
    is raised as it is."""
    try:
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(call) for call in calls]
    except BaseExceptionGroup as failures:
        # Callers expect the error of a call, not a group.
        raise failures.exceptions[0] from None
    return [task.result() for task in tasks]

"""Requests that wait for their answers, and the errors they end with."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol

from msgspec import Struct

from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Attach, BrowseDurable, Subscribe
from penstock_core.vocabulary.errors import (
    CannotConnect,
    ConnectionLost,
    PenstockError,
    RemoteProtocolViolation,
    error_classes,
)

Body = bytes | bytearray | memoryview

ALL_TAKEN: Final = (1 << 63) - 1
"""Value for a realm that has not reported which requests it has begun: it may have begun all of
them."""
OPENINGS: Final = (Subscribe, Attach, BrowseDurable)
"""Requests that belong to one connection."""

_errors = error_classes()


class AnswerFuture(Protocol):
    """Receives an answer: a future, or an object with the same methods."""

    def done(self) -> bool:
        """Return whether the answer has arrived, or the caller has stopped waiting."""
        ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: PenstockError, /) -> None: ...

    def exception(self) -> object:
        """Mark the error as retrieved. Called after :meth:`set_exception`, so that asyncio does not
        warn if the caller has stopped waiting."""
        ...


class Pending(Struct):
    """A request that has not been answered."""

    number: int
    """Number of the request, which its answer repeats."""
    message: Request[Any]
    bodies: Sequence[Body]
    schemas: tuple[int, ...]
    answer: AnswerFuture
    resend: bool
    """Whether the request may be sent again on a new connection without changing the outcome."""
    waits: bool = True
    """Whether the request may wait for the next connection; requests that belong to one connection
    may not."""
    sent: bool = False


def reject(answer: AnswerFuture, error: PenstockError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def end_of(
    pending: Pending, farewell: PenstockError | None, why: str, taken: int
) -> PenstockError | None:
    """Return the error of a request whose connection is lost; None if it is sent again on the next
    connection.

    ``farewell`` is the realm's reason for ending the connection, ``taken`` the highest number of a
    request that the realm may have begun.
    """
    if isinstance(farewell, RemoteProtocolViolation):
        return farewell  # the same request would end every further connection
    if not pending.sent or pending.resend:
        return None
    belongs = isinstance(pending.message, OPENINGS) or not pending.waits
    was_begun = pending.number <= taken
    if not (was_begun or belongs):
        pending.sent = False
        return None
    what = type(pending.message).__name__
    if was_begun:
        return ConnectionLost(
            f"the connection was lost ({why}) before {what} was answered; "
            "it is unknown whether it was done"
        )
    return ConnectionLost(
        f"the connection was lost ({why}) before {what} was begun: nothing was done, and "
        "unsettled events of this connection are delivered again"
    )


def no_connection() -> ConnectionLost:
    """Return the error of a request that cannot wait for the next connection."""
    return ConnectionLost(
        "the session is not connected to the realm at the moment: nothing was done, "
        "and unsettled events of the last connection are delivered again"
    )


def no_realm(reasons: Iterable[str]) -> CannotConnect:
    """Return the error for a session that no address has answered; ``reasons`` has one for each
    address."""
    return CannotConnect(
        f"no realm answered ({'; '.join(reasons)}); is one running? "
        "start it with: penstock serve --data DIR"
    )


def is_lost(answer: AnswerFuture) -> bool:
    """Return whether a request has ended with the loss of its connection: its outcome is
    unknown."""
    return isinstance(answer.exception(), ConnectionLost)


def error_of(code: str, text: str) -> PenstockError:
    """Return the error of a code that the realm has sent."""
    return _errors.get(code, PenstockError)(text)


def reason_of(error: BaseException | None) -> str:
    """Return why a connection was lost or refused, for error texts."""
    if error is None:
        return "it was closed"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__

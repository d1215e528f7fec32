"""Requests that wait for their answers, and the errors that can end them."""

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
"""Request number that is assumed if the realm has not reported its last begun request: all requests
may have been begun."""
OPENINGS: Final = (Subscribe, Attach, BrowseDurable)
"""Requests that open a subscription. They belong to one connection."""

_errors = error_classes()


class AnswerFuture(Protocol):
    """The receiver of an answer: a future, or an object with the same methods."""

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
    """Whether the request may be sent again on a new connection, because a repetition changes
    nothing."""
    waits: bool = True
    """Whether the request may wait for the next connection. False for requests that belong to one
    connection."""
    sent: bool = False
    """Whether the request was sent on the present or last connection."""


def reject(answer: AnswerFuture, error: PenstockError) -> None:
    """End a request with an error, unless it has ended already."""
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def end_of(
    pending: Pending, farewell: PenstockError | None, reason_text: str, taken: int
) -> PenstockError | None:
    """Return the error of a request whose connection is lost; None if the request can be sent again
    on the next connection.

    ``farewell`` is the error that the realm sent before it ended the connection, if any. ``taken``
    is the highest number of a request that the realm may have begun.
    """
    if isinstance(farewell, RemoteProtocolViolation):
        return farewell  # the same request would end every further connection
    if not pending.sent or pending.resend:
        return None
    needs_this_connection = isinstance(pending.message, OPENINGS) or not pending.waits
    was_begun = pending.number <= taken
    if not (was_begun or needs_this_connection):
        # The realm has not begun the request, so it can be sent again although a repetition of it
        # would not be safe.
        pending.sent = False
        return None
    name = type(pending.message).__name__
    if was_begun:
        return ConnectionLost(
            f"the connection was lost ({reason_text}) before {name} was answered; "
            "it is unknown whether it was done"
        )
    return ConnectionLost(
        f"the connection was lost ({reason_text}) before {name} was begun: nothing was done, and "
        "unsettled events of this connection are delivered again"
    )


def no_connection() -> ConnectionLost:
    """Return the error of a request that cannot wait for the next connection."""
    return ConnectionLost(
        "the session is not connected to the realm at the moment: nothing was done, "
        "and unsettled events of the last connection are delivered again"
    )


def no_realm(reasons: Iterable[str]) -> CannotConnect:
    """Return the error for a session that could not connect to any address. ``reasons`` has the
    address and its failure, one text for each address."""
    return CannotConnect(
        f"no realm answered ({'; '.join(reasons)}); is one running? "
        "start it with: penstock serve --data DIR"
    )


def is_lost(answer: AnswerFuture) -> bool:
    """Return whether a request ended because its connection was lost, so that its outcome is
    unknown. The request must have ended."""
    return isinstance(answer.exception(), ConnectionLost)


def error_of(code: str, text: str) -> PenstockError:
    """Return the error for a code and text that the realm has sent. A code that this version does
    not know becomes a ``PenstockError``."""
    return _errors.get(code, PenstockError)(text)


def reason_of(error: BaseException | None) -> str:
    """Return, for error texts, the reason why a connection was lost or refused. None means that the
    peer closed it."""
    if error is None:
        return "it was closed"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__

"""Requests that wait for their answers."""

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
"""What a realm may have begun that does not say what it has."""
OPENINGS: Final = (Subscribe, Attach, BrowseDurable)
"""Requests that belong to one connection."""

_errors = error_classes()


class AnswerFuture(Protocol):
    """What an answer is given to: a future, or an object that acts like one."""

    def done(self) -> bool:
        """Whether the answer has come, or nobody waits for it any more."""
        ...

    def set_result(self, result: Any, /) -> None: ...

    def set_exception(self, error: PenstockError, /) -> None: ...

    def exception(self) -> object:
        """Called after :meth:`set_exception`: somebody may have stopped waiting, that is no
        warning."""
        ...


class Pending(Struct):
    """A request without an answer yet."""

    number: int
    """Number of the request, which its answer repeats."""
    message: Request[Any]
    bodies: Sequence[Body]
    schemas: tuple[int, ...]
    answer: AnswerFuture
    resend: bool
    """Whether it may be sent again on a new connection without changing the outcome."""
    waits: bool = True
    """Whether it may wait for the next connection, as what belongs to one may not."""
    sent: bool = False


def reject(answer: AnswerFuture, error: PenstockError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


def end_of(
    pending: Pending, farewell: PenstockError | None, why: str, taken: int
) -> PenstockError | None:
    """How a request ends with its connection; None: it does not, and is sent again on the next.

    ``farewell`` is what the realm has said at the end, ``taken`` the highest number of a request
    that it may have begun.
    """
    if isinstance(farewell, RemoteProtocolViolation):
        return farewell  # it would end the next connection as well, and the one after that
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
        f"the connection was lost ({why}) before {what} was begun: nothing was done, and what the "
        "connection had in hand is the realm's again"
    )


def no_connection() -> ConnectionLost:
    """The error of a request that cannot wait for the next connection."""
    return ConnectionLost(
        "there is no connection to the realm at the moment: nothing was done, and what the last "
        "one had in hand is the realm's again"
    )


def no_realm(reasons: Iterable[str]) -> CannotConnect:
    """The error for addresses at none of which a realm has answered, by address."""
    return CannotConnect(
        f"no realm answered ({'; '.join(reasons)}); is one running? "
        "start it with: penstock serve --data DIR"
    )


def is_lost(answer: AnswerFuture) -> bool:
    """Whether the answer is the loss of the connection, after which the outcome is unknown."""
    return isinstance(answer.exception(), ConnectionLost)


def error_of(code: str, text: str) -> PenstockError:
    """The error a realm has named."""
    return _errors.get(code, PenstockError)(text)


def reason_of(error: BaseException | None) -> str:
    """Why a connection was lost, or was not made."""
    if error is None:
        return "it was closed"
    if isinstance(error, TimeoutError):
        return "no answer in time"
    return str(error) or type(error).__name__

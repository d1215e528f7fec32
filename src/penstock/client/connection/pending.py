"""Requests that wait for their answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from penstock.api.requests import Request
from penstock.core.vocabulary.errors import ConnectionLost, PenstockError, error_classes

Body = bytes | bytearray | memoryview

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
    sent: bool = False


def reject(answer: AnswerFuture, error: PenstockError) -> None:
    if not answer.done():
        answer.set_exception(error)
        answer.exception()


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

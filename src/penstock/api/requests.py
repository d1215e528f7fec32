"""What every request of the realm's API is made from."""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeVar, get_args

from msgspec import Struct

Kind = Literal["channel", "queue"]
"""What a name is meant to be; the other is refused."""

AnswerT = TypeVar("AnswerT", covariant=True)


class Request(Struct, Generic[AnswerT], frozen=True, array_like=True):
    """Asks for something, and is answered by an ``AnswerT`` or refused with an error."""


def answer_type(request: type[Request[Any]]) -> Any:
    """What a request of this type is answered with, as its base class says."""
    base = next(iter(request.__orig_bases__))  # type: ignore[attr-defined]  # each has one
    return get_args(base)[0]

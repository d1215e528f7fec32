"""What every request of the realm's API is made from."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import Struct

Kind = Literal["channel", "queue"]
"""What a name is meant to be; the other is refused."""

AnswerT = TypeVar("AnswerT", covariant=True)


class Request(Struct, Generic[AnswerT], frozen=True, array_like=True):
    """Asks for something, and is answered by an ``AnswerT`` or refused with an error."""

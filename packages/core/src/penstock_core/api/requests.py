"""The base of all requests of the realm's API."""

from __future__ import annotations

from typing import Generic, Literal, TypeVar

from msgspec import Struct

Kind = Literal["channel", "queue"]
"""The kind of store that a request names; a store of the other kind is refused."""

AnswerT = TypeVar("AnswerT", covariant=True)


class Request(Struct, Generic[AnswerT], frozen=True, array_like=True):
    """A request. Its answer is an ``AnswerT``, or an error."""

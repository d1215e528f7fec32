"""What every request of the realm's API is made from."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

from penstock.core.bounds import Number

Kind = Literal["channel", "queue"]
"""What a name is meant to be; the other is refused."""


class Message(Struct, frozen=True, array_like=True):
    """Travels as an array of its fields."""


class Request(Message, frozen=True):
    """Asks for an answer: ``Done`` or ``Failed`` with the same number."""

    request: Number

"""Names of the durables that sessions of MQTT have (SEM M6): their session makes and deletes
them."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "mqtt:"
"""What the names of the durables of sessions begin with."""
DIGITS: Final = 16
"""Hexadecimal digits at the end of such a name, by which it is unique."""


def is_of_session(name: str) -> bool:
    """Whether a durable is one of a session, by its name."""
    last = name.rpartition(":")[2]
    is_hash = len(last) == DIGITS and all(each in "0123456789abcdef" for each in last)
    return name.startswith(PREFIX) and is_hash

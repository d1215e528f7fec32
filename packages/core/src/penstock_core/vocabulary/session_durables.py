"""Names of the durables of MQTT sessions (SEM M6), which their session creates and deletes."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "mqtt:"
"""Prefix of the names of such durables."""
DIGITS: Final = 16
"""Hexadecimal digits at the end of such a name, which make it unique."""


def is_of_session(name: str) -> bool:
    """Whether this is the name of a session's durable."""
    last = name.rpartition(":")[2]
    is_hash = len(last) == DIGITS and all(digit in "0123456789abcdef" for digit in last)
    return name.startswith(PREFIX) and is_hash

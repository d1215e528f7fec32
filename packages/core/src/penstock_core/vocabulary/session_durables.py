"""Names of the durables of MQTT sessions (SEM M6), which their session creates and deletes."""

from __future__ import annotations

from typing import Final

PREFIX: Final = "mqtt:"
"""Prefix of the names of durables of MQTT sessions."""
DIGITS: Final = 16
"""Number of hexadecimal digits at the end of the name of such a durable, which make it unique."""


def is_of_session(name: str) -> bool:
    """Whether this is the name of a durable of an MQTT session."""
    last = name.rpartition(":")[2]
    is_hash = len(last) == DIGITS and all(digit in "0123456789abcdef" for digit in last)
    return name.startswith(PREFIX) and is_hash

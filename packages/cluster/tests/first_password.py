"""Finds the password of a realm's first administrator, which a node prints between the lines of its
log."""

from __future__ import annotations

import json


def first_password(output: str) -> str:
    """Return the password in the standard output of nodes. Raises ``ValueError`` if none has
    printed it."""
    (line,) = output.splitlines()
    shown = json.loads(line)
    assert shown["event"] == "access.first_administrator", shown
    password: str = shown["password"]
    return password

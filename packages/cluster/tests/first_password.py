"""The password of a realm's first administrator, as a node shows it beside a log in JSON."""

from __future__ import annotations

import json


def first_password(output: str) -> str:
    """The password in what nodes have written to standard output. Raises ``ValueError`` where none
    has shown it."""
    (line,) = output.splitlines()
    shown = json.loads(line)
    assert shown["event"] == "access.first_administrator", shown
    password: str = shown["password"]
    return password

"""Front ends ask the realm's door and read its view; they reach past neither, and every right
stands in the one table of operations."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

from penstock_core.api.operations import OPERATIONS

PACKAGES: Final = Path(__file__).parents[2] / "packages"
FRONT_ENDS: Final = [
    path
    for folder in ("server/src/penstock_server/frontends", "amqp/src", "mqtt/src")
    for path in (PACKAGES / folder).rglob("*.py")
    if path.stem != "topic_handlers"  # answers requests, within the door
]
REACHES: Final = re.compile(r"\.(?:shard|directory)\b|\b(?:channel|group|store)\.state\b")
"""The parts of an expression that reach the state of the realm, or the task that writes it."""
OPERATION: Final = re.compile(rf'"({"|".join(map(re.escape, sorted(OPERATIONS)))})"')
"""An operation by its name, and so the right that it needs."""
SIGNING_IN: Final = "session.open"
"""The operation of clients that are signing in and so cannot send a request yet."""


def reaches_in(path: Path) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if not line.lstrip().startswith(("from ", "import ", "#", '"'))]
    return sum(len(REACHES.findall(line)) for line in code)


def test_front_ends_do_not_reach_into_the_state_of_the_realm() -> None:
    counts = {
        path.relative_to(PACKAGES).as_posix(): count
        for path in FRONT_ENDS
        if (count := reaches_in(path))
    }

    assert counts == {}, "ask penstock_server.runtime.operations.door, or read realm.view"


def test_front_ends_name_no_right_themselves() -> None:
    named = {
        f"{path.relative_to(PACKAGES).as_posix()}: {name}"
        for path in FRONT_ENDS
        for name in OPERATION.findall(path.read_text(encoding="utf-8"))
        if name != SIGNING_IN
    }

    assert named == set(), "read it off the request, by penstock_core.api.operations.operation_on"

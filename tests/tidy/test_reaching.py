"""Front ends ask the realm's door and read its view; what reaches past both is listed, and the list
only gets shorter."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

FRONTENDS: Final = Path(__file__).parents[2] / "src" / "penstock" / "frontends"
REACHES: Final = re.compile(r"\.(?:shard|directory)\b|\b(?:channel|group|store)\.state\b")
"""How the state of the realm, or the task that writes it, is taken hold of."""
LEFT: Final = {
    "amqp/consumers.py": 3,  # settles, and grants inside the group that is being written
    "amqp/transactions.py": 1,  # one step for all that a transaction has done
    "native/listener.py": 2,  # answers of a group leave together
}
"""How often a front end still does so."""


def reaches_in(path: Path) -> int:
    lines = path.read_text(encoding="utf-8").splitlines()
    code = [line for line in lines if not line.lstrip().startswith(("from ", "import ", "#", '"'))]
    return sum(len(REACHES.findall(line)) for line in code)


def test_front_ends_do_not_reach_into_the_state_of_the_realm() -> None:
    found = {
        path.relative_to(FRONTENDS).as_posix(): count
        for path in FRONTENDS.rglob("*.py")
        if (count := reaches_in(path))
    }

    more = {name: count for name, count in found.items() if count > LEFT.get(name, 0)}
    assert more == {}, "ask penstock.runtime.operations.door, or read realm.view"


def test_what_no_longer_reaches_has_left_the_list() -> None:
    assert {name: reaches_in(FRONTENDS / name) for name in LEFT} == LEFT

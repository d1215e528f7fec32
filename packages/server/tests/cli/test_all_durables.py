"""``penstock durable`` and ``penstock subscribe --durable`` for every type of durable, on both
engines."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import penstock
from penstock_server.cli.stores.attributes import durable_type_shown

if TYPE_CHECKING:
    from tests.commands import Run

pytestmark = pytest.mark.slow

KINDS = ("exclusive", "priority", "shared", "serial", "shared_queued")


@pytest.mark.spec("D5", "D14", "D16", "D17")
@pytest.mark.parametrize("engine", ["default", pytest.param("jms", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", KINDS)
def test_each_option_has_its_effect(
    penstock_command: Run, session: penstock.Session, kind: str, engine: penstock.Engine
) -> None:
    def run(*words: str) -> Any:
        result = penstock_command(*words)
        assert result.exit_code == 0, result.stderr
        return result.stdout

    def shown() -> Any:
        return json.loads(run("durable", "show", "orders", "d", "--format", "json"))

    channel = session.channels.create("orders", engine=engine)
    made = run("durable", "create", "orders", "d", "--type", kind)
    assert made == f"durable d created: {durable_type_shown(kind)}, 0 events outstanding\n"
    channel.publish_many([penstock.Event(b"event %d" % n) for n in range(6)])

    assert run("durable", "list", "orders").splitlines()[1].split()[:2] == ["d", kind]
    assert (shown()["type"], shown()["outstanding"], shown()["clients"]) == (kind, 6, [])
    browsed = run("durable", "browse", "orders", "d").splitlines()[1:]
    assert [row.split()[0] for row in browsed] == list("012345")

    printed = run("subscribe", "orders", "--durable", "d", "--count", "2", "--format", "json")
    assert [json.loads(line)["event_id"] for line in printed.splitlines()] == [0, 1]
    now = shown()
    assert (now["outstanding"], now["in_flight"], now["redelivered"]) == (4, 0, 0)
    assert channel.info().events == 4

    with channel.durables.get("d").subscribe() as held:
        assert held.next_batch(30) is not None
        assert shown()["in_flight"] == 4
        assert run("durable", "unbind", "orders", "d", "-y") == "durable d: 1 subscription ended\n"
        now = shown()
        assert (now["in_flight"], now["clients"]) == (0, [])
        assert now["redelivered"] == (0 if kind in ("exclusive", "priority") else 4)

    purged = penstock_command("durable", "purge", "orders", "d", "--yes")
    if kind in ("shared", "serial"):
        assert purged.stdout == "durable d: 4 events purged\n"
        assert shown()["outstanding"] == 0
    else:
        assert purged.exit_code == 1
        assert purged.stderr.splitlines()[0].endswith("[illegal-state]")
        assert shown()["outstanding"] == 4
    assert run("durable", "delete", "orders", "d", "-y") == "durable d deleted\n"
    assert channel.durables.list() == []
    assert channel.info().events == (
        4 if engine == "default" and kind not in ("shared", "serial") else 0
    )

"""``penstock redrive``, and what dead events look like."""

from __future__ import annotations

import json
import sys
import threading
from typing import TYPE_CHECKING

import pytest

import penstock
from penstock.client.sync.sync import Channel
from penstock_server.cli.events.redriving import redriven, watched

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.fixture
def dead(session: penstock.Session) -> Channel:
    """Three events that were pushed out of ``small``, and one out of ``tiny``."""
    dead = session.channels.create("dead/events")
    for name, count in (("small", 3), ("tiny", 1)):
        store = session.channels.create(name, capacity=1, dead_event_store="dead/events")
        for n in range(count + 1):
            store.publish(b"event", properties={"n": n})
        store.edit(capacity=0)
    return dead


def test_a_dead_event_is_printed_with_its_cause(penstock_command: Run, dead: Channel) -> None:
    header, *rows = penstock_command("browse", "dead/events").stdout.splitlines()
    first = penstock_command("browse", "dead/events", "--count", "1", "--format", "json").stdout
    origin = json.loads(first)["origin"]

    assert header.split() == ["event_id", "published", "came_from", "data", "n"]
    assert ["small 2, evicted" in row for row in rows] == [False, False, True, False]
    assert (origin["store"], origin["event_id"], origin["cause"]) == ("small", 0, "evicted")
    assert {"published", "at", "durables", "redeliveries", "ttl", "path"} <= origin.keys()


@pytest.mark.spec("T10")
def test_a_rejected_event_is_printed_with_its_reason(
    penstock_command: Run, session: penstock.Session
) -> None:
    session.channels.create("dead/parcels")
    parcels = session.channels.create("parcels", dead_event_store="dead/parcels")
    parcels.publish_many([penstock.Event(b"a"), penstock.Event(b"b")])
    with parcels.durables.create("lake", type="serial").hold() as hold:
        hold.bury([0], "no such\nparcel")
        hold.bury([1], "x" * 1_000)
    _, first, second = penstock_command("browse", "dead/parcels").stdout.splitlines()

    assert "parcels 0, rejected: no such parcel" in first
    assert "parcels 1, rejected: xxx" in second


@pytest.mark.spec("T10")
def test_dead_events_go_back_where_they_came_from(
    penstock_command: Run, session: penstock.Session, dead: Channel
) -> None:
    done = penstock_command("redrive", "dead/events")

    assert done.stdout == "4 events moved from dead/events, 0 left\n  small  3\n  tiny  1\n"
    assert session.channels.get("small").info().events == 4
    assert (dead.info().events, dead.info().counters.redriven) == (0, 4)


@pytest.mark.spec("T10")
def test_those_a_selector_matches_go_elsewhere(
    penstock_command: Run, session: penstock.Session, dead: Channel
) -> None:
    other_queue = session.queues.create("other")

    done = penstock_command("redrive", "dead/events", "--to", "other", "--selector", "n = 0")

    assert done.stdout == "2 events moved from dead/events, 2 left\n  other  2\n"
    assert other_queue.info().events == 2


def test_a_dry_run_moves_nothing(penstock_command: Run, dead: Channel) -> None:
    preview = penstock_command("redrive", "dead/events", "--selector", "n > 0", "--dry-run")

    assert preview.stdout.splitlines()[0] == "2 events would be moved from dead/events, 2 left"
    assert dead.info().events == 4


def test_the_result_as_json_is_one_document(penstock_command: Run, dead: Channel) -> None:
    done = json.loads(penstock_command("redrive", "dead/events", "--format", "json").stdout)

    assert done == {
        "moved": 4,
        "destinations": {"small": 3, "tiny": 1},
        "left": 0,
        "dry_run": False,
    }


@pytest.mark.parametrize(
    ("arguments", "message", "code"),
    [
        (["nowhere"], "nowhere", "name-does-not-exist"),
        (["dead/events", "--to", "nowhere"], "nowhere", "name-does-not-exist"),
        (["dead/events", "--to", "dead/events"], "to itself", "invalid-argument"),
        (["dead/events", "--selector", "n >"], "expected a value", "invalid-selector"),
    ],
)
def test_a_refusal_is_one_line_with_its_code(
    penstock_command: Run, dead: Channel, arguments: list[str], message: str, code: str
) -> None:
    refused = penstock_command("redrive", *arguments)

    assert (refused.exit_code, refused.stdout) == (1, "")
    assert message in refused.stderr
    assert refused.stderr.splitlines()[0].endswith(f" [{code}]")
    assert dead.info().events == 4


def test_a_printed_dead_event_can_be_published(
    penstock_command: Run, session: penstock.Session, dead: Channel
) -> None:
    lines = penstock_command("browse", "dead/events", "--format", "json").stdout
    copies = session.channels.create("copies")

    printed = penstock_command("publish", "copies", "--file", "-", stdin=lines)

    assert printed.exit_code == 0
    assert [event.properties["n"] for event in copies.browse()] == [0, 1, 2, 0]
    assert all(event.origin is None for event in copies.browse())


class Seen:
    def __init__(self, enough: threading.Event) -> None:
        self.steps: list[int] = []
        self._enough = enough

    def show(self, done: int) -> None:
        self.steps.append(done)
        if done == 2:
            self._enough.set()


def test_work_is_watched_until_it_ends() -> None:
    enough = threading.Event()
    seen = Seen(enough)
    steps = iter((1, 2))

    result = watched(lambda: enough.wait(60), lambda: next(steps, 2), seen)

    assert result is True
    assert seen.steps[:2] == [1, 2]


def test_a_failure_of_the_work_is_raised() -> None:
    def fail() -> int:
        raise penstock.CapacityReached("full")

    with pytest.raises(penstock.CapacityReached, match="full"):
        watched(fail, lambda: 0, Seen(threading.Event()))


def test_at_a_terminal_the_result_is_the_same(
    session: penstock.Session,
    dead: Channel,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)

    done = redriven(session, "dead/events", "", selector="", dry_run=False)

    assert (done.moved, done.left) == (4, 0)
    assert "redriving" in capsys.readouterr().err

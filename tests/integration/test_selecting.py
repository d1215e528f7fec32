"""Selectors over what is sealed: what is passed over unread is never anything that matches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock import Event
from penstock.client.sync.sync import Channel, Queue, Session
from penstock_core.columns.events.batch import stamp
from penstock_core.columns.events.body import body_of
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import Span
from tests.patience import until

pytestmark = pytest.mark.slow

PER_PHASE = 400
PHASES = 5

SELECTORS = [
    "n = 7",
    "n > 1990",
    "n BETWEEN 395 AND 405",
    "NOT n < 1990",
    "phase = 'p3' AND odd",
    "phase IN ('p0', 'p9')",
    "phase LIKE 'p4%'",
    "phase = 'nowhere'",
    "nowhere = 1",
    "nowhere IS NULL AND n < 3",
    "late IS NOT NULL",
    "late = 5 OR n = 1",
    "mixed = 'text' AND n > 1500",
    "mixed = 900",
    "lists[] = 'x1999'",
    "JMSPriority = 9",
    "JMSPriority <> 4 AND n < 1000",
    "tag = 'few'",
    "tag IS NULL AND n > 1995",
    "event_id < 3 OR event_id = 1999",
    "published > NOW() - 3600000 AND n = 3",
    "published < NOW() - 3600000",
    "EVENTDATA.LENGTH() = 3 AND n < 10",
]


def event(n: int) -> Event:
    phase = n // PER_PHASE
    properties: dict[str, Any] = {
        "n": n,
        "phase": f"p{phase}",
        "odd": n % 2 == 1,
        "lists": [f"x{n}", "y"],
        "mixed": n if n % 2 else "text",
    }
    if phase == 4:
        properties["late"] = n % 7
    return Event(
        b"abc",
        tag="few" if n % 500 == 3 else None,
        priority=9 if n in (5, 1234) else None,
        properties=properties,
        persistent=n % 97 != 0,
    )


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    with penstock.Realm(tmp_path) as realm, realm.connect() as opened:
        yield opened


def all_events() -> pa.RecordBatch:
    """As they are stored, one by one and without files."""
    now_us = int(datetime.now(UTC).timestamp() * 1_000_000)
    events = [event(n) for n in range(PHASES * PER_PHASE)]
    return stamp(body_of(events), Span(0, len(events)), now_us)


def wanted(batch: pa.RecordBatch, text: str) -> list[int]:
    """Asked of every event there is."""
    now_us = batch["published"][0].value
    mask = Selector(text).mask(batch, now_us=now_us)
    matching_ids: list[int] = batch["event_id"].filter(mask).to_pylist()
    return matching_ids


def filled(store: Channel | Queue) -> pa.RecordBatch:
    """All events, most of them sealed; those that are not persistent stay in memory."""
    for phase in range(PHASES):
        events = [event(n) for n in range(phase * PER_PHASE, (phase + 1) * PER_PHASE)]
        if isinstance(store, Channel):
            store.publish_many(events)
        else:
            store.push_many(events)
    until(lambda: store.info().storage.sealed_bytes)
    return all_events()


@pytest.mark.spec("F5")
def test_whoever_reads_with_a_selector_gets_all_that_match(session: Session) -> None:
    channel = session.channels.create("orders", type="mixed", storage={"events_per_spindle": 500})
    batch = filled(channel)

    for text in SELECTORS:
        expected = wanted(batch, text)
        assert [match_.event_id for match_ in channel.browse(selector=text)] == expected, text
        assert channel.read(selector=text)["event_id"].to_pylist() == expected, text
        with channel.subscribe(start="earliest", selector=text, timeout=10.0) as subscription:
            ids_received = list(itertools.islice((e.event_id for e in subscription), len(expected)))
        assert ids_received == expected, text


@pytest.mark.spec("F5")
def test_durables_made_late_are_owed_all_that_match(session: Session) -> None:
    channel = session.channels.create("orders", type="mixed", storage={"events_per_spindle": 500})
    batch = filled(channel)

    for number, text in enumerate(SELECTORS):
        durable = channel.durables.create(
            f"d{number}", type="shared", start="earliest", selector=text
        )
        assert [match_.event_id for match_ in durable.browse()] == wanted(batch, text), text


@pytest.mark.spec("F5", "Q4")
def test_a_queue_shows_and_gives_all_that_match(session: Session) -> None:
    work = session.queues.create("work", type="mixed", storage={"events_per_spindle": 500})
    batch = filled(work)

    for text in SELECTORS:
        expected = wanted(batch, text)
        assert [match_.event_id for match_ in work.peek(5_000, selector=text)] == expected, text
        with work.reader(transactional=True, window=5_000, selector=text, timeout=10.0) as reader:
            ids_received = list(itertools.islice((e.event_id for e in reader), len(expected)))
        assert ids_received == expected, text


@pytest.mark.spec("F5", "T9")
def test_a_purge_removes_all_that_match_and_nothing_else(session: Session) -> None:
    channel = session.channels.create("orders", type="mixed", storage={"events_per_spindle": 500})
    batch = filled(channel)
    remaining = set(range(PHASES * PER_PHASE))

    for text in SELECTORS:
        expected = remaining.intersection(wanted(batch, text))
        assert channel.purge(selector=text) == len(expected), text
        remaining -= expected
        assert [match_.event_id for match_ in channel.browse()] == sorted(remaining), text


@pytest.mark.spec("F5")
def test_what_is_ruled_out_is_not_read(tmp_path: Path) -> None:
    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        channel = session.channels.create(
            "orders", type="persistent", storage={"events_per_spindle": 500}
        )
        filled(channel)
        until(lambda: channel.info().storage.sealed_files >= 4)
    for file in sorted((tmp_path / "segments").rglob("*.arrow"))[:2]:
        file.write_bytes(b"x" * file.stat().st_size)

    with penstock.Realm(tmp_path) as realm, realm.connect() as session:
        channel = session.channels.get("orders")
        ids = [e.event_id for e in channel.browse(selector="n > 1990")]
        assert ids == list(range(1_991, 2_000))
        assert channel.info().events == PHASES * PER_PHASE  # nobody has noticed the damage yet
        assert [e.event_id for e in channel.browse(selector="n IN (1, 1500)")] == [1_500]
        assert channel.info().events == PHASES * PER_PHASE - 500

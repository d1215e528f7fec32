"""``penstock delivery``."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pyarrow import ipc

from penstock.client.sync.sync import Channel, Queue, Session
from penstock_core.columns.events.delivery_table import DELIVERY_SCHEMA

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.fixture
def stuck(session: Session, orders: Channel) -> Channel:
    """The five events, two of them leased for ``billing`` and none read for ``audit``."""
    session.channels.create("dead")
    orders.edit(dead_event_store="dead")
    orders.durables.create("audit", type="serial")
    orders.durables.create("billing", ack_timeout="1h").fetch(2, timeout=5)
    return orders


@pytest.mark.spec("D23")
def test_a_table_has_a_row_for_each_event_and_durable(
    penstock_command: Run, session: Session, stuck: Channel
) -> None:
    printed = penstock_command("delivery", "orders", "--durable", "billing").stdout
    header, first, *_, last = printed.splitlines()

    assert header.split()[:4] == ["event_id", "durable", "state", "client"]
    assert "delayed_until" not in header, "no event is delayed"
    assert first.split()[:4] == ["0", "billing", "in_flight", session.session_id]
    assert last.split()[:3] == ["4", "billing", "ready"]


@pytest.mark.spec("D23")
def test_groups_tell_what_is_stuck_with_whom_since_when(
    penstock_command: Run, session: Session, stuck: Channel
) -> None:
    printed = penstock_command("delivery", "orders", "--by-durable", "--format", "json").stdout
    audit, held, ready = json.loads(printed)
    rows = stuck.delivery_state(durable="billing", states=["in_flight"]).to_pylist()

    assert (audit["durable"], audit["state"], audit["events"]) == ("audit", "ready", 5)
    assert (held["client"], held["events"], held["deliveries"]) == (session.session_id, 2, 1)
    since = min(row["since"] for row in rows)
    assert held["since"] == since.isoformat().replace("+00:00", "Z")
    assert (ready["state"], ready["events"], ready["client"]) == ("ready", 3, None)
    lines = penstock_command("delivery", "orders", "--by-durable").stdout.splitlines()
    columns = "durable state client events since deliveries lease_end"
    assert lines[0].split() == columns.split()


@pytest.mark.spec("D23")
def test_dead_events_are_printed_with_their_cause(penstock_command: Run, stuck: Channel) -> None:
    (event,) = stuck.durables.get("audit").fetch(1, timeout=5)
    event.reject("broken")
    stuck.durables.get("audit").flush()
    printed = penstock_command("delivery", "orders", "--state", "dead, delayed").stdout
    header, row = printed.splitlines()

    columns = "event_id durable state since deliveries cause dead_event_id"
    assert header.split() == columns.split()
    assert row.split()[:3] == ["0", "audit", "dead"]
    assert row.split()[-3:] == ["1", "rejected", "0"]


@pytest.mark.spec("D23")
def test_an_arrow_stream_has_the_columns_of_the_table(
    penstock_command: Run, stuck: Channel
) -> None:
    printed = penstock_command("delivery", "orders", "--format", "arrow", "--count", "7")
    table = ipc.open_stream(printed.stdout_bytes).read_all()

    assert table.schema == DELIVERY_SCHEMA
    assert table.num_rows == 7


@pytest.mark.spec("D23")
def test_a_queue_is_shown_and_an_empty_answer_says_so(penstock_command: Run, work: Queue) -> None:
    assert penstock_command("delivery", "work").stdout.splitlines()[1].split()[1] == "ready"
    printed = penstock_command("delivery", "work", "--state", "in_flight").stdout
    assert printed == "no events of work are in_flight\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nowhere",), "no channel or queue nowhere exists"),
        (("orders", "--durable", "nobody"), "orders has no durable nobody"),
        (("orders", "--state", "lost"), "state 'lost' is unknown; allowed are ready, in_flight"),
    ],
)
def test_names_that_do_not_fit_are_refused(
    penstock_command: Run, orders: Channel, arguments: tuple[str, ...], message: str
) -> None:
    refused = penstock_command("delivery", *arguments)

    assert refused.exit_code == 1
    assert message in refused.output

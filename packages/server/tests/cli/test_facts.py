"""The output of ``show`` for attributes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import penstock

if TYPE_CHECKING:
    from tests.commands import Run


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("", "type          mixed, engine default"),
        ("--type simple", "type          simple (deprecated), engine default"),
        ("--type persistent", "lifetime      events stay for ever"),
        ("--ttl 1h", "lifetime      events stay 1 h; an event's own TTL takes precedence"),
        ("--type persistent --ttl 1h", "lifetime      events stay 1 h"),
        (
            "--type persistent --engine jms",
            "lifetime      events stay while a durable or reader waits for them",
        ),
        (
            "--type persistent --engine jms --ttl 1h",
            "lifetime      events stay while a durable or reader waits for them, at most 1 h",
        ),
        (
            "--type transient",
            "lifetime      events go to the current subscribers and are not stored",
        ),
        (
            "--type persistent --event-ttl",
            "lifetime      events stay for ever; an event's own TTL takes precedence",
        ),
        ("", "capacity      no limit"),
        (
            "--capacity 5 --honour-capacity",
            "capacity      5 events; when full it refuses new events",
        ),
        ("", "dead events   are counted, not kept"),
        ("--dead-event-store dead", "dead events   go to dead"),
        ("", "keys          none"),
        ("--key a=1 --key b=2000", "keys          a (newest 1), b (newest 2,000)"),
        ("--no-cluster-wide", "cluster-wide  no"),
        ("--retain-consumed", "consumed      kept"),
        ("", "archive       none"),
        ("--archive lake/orders", "archive       lake/orders"),
        ("", "sync          in groups, at 1.0 MiB or after 2 ms"),
        ("--sync-each-write", "sync          each publish separately"),
        ("--sync none", "sync          left to the operating system"),
        ("", "files         50,000 events each"),
        (
            "--events-per-spindle 0",
            "files         a single one, rewritten when much of it is unused",
        ),
        (
            "--events-per-spindle 0 --no-auto-maintenance",
            "files         a single one, rewritten on demand only",
        ),
        ("", "reading       1.0 MiB at a time, cached"),
        (
            "--cache-on-reload --read-buffer-size 8192",
            "reading       8.0 KiB at a time, cached, loaded at start-up",
        ),
        ("--no-enable-caching", "reading       1.0 MiB at a time, not cached"),
        ("", "stamped       priority 4 by default"),
        (
            "--priority 7 --stamp-dictionary",
            "stamped       priority 7 by default, publisher, host, time and id",
        ),
    ],
)
def test_every_attribute_is_a_line(
    penstock_command: Run, session: penstock.Session, options: str, line: str
) -> None:
    session.channels.create("dead")
    made = penstock_command("channel", "create", "c", *options.split())

    shown = penstock_command("channel", "show", "c")

    assert made.exit_code == 0
    assert line in shown.stdout.splitlines()


@pytest.mark.parametrize("type", ["reliable", "simple", "off_heap", "transient"])
def test_nothing_is_said_of_files_where_there_are_none(penstock_command: Run, type: str) -> None:
    penstock_command("channel", "create", "c", "--type", type)

    shown = penstock_command("channel", "show", "c").stdout

    assert not {"sync", "files", "reading"} & {line.split()[0] for line in shown.splitlines()}


def test_a_queue_shows_when_its_events_are_dead(
    penstock_command: Run, session: penstock.Session
) -> None:
    session.channels.create("dead")
    penstock_command("queue", "create", "q", "--dead-event-store", "dead", "--max-deliveries", "3")

    shown = penstock_command("queue", "show", "q").stdout

    assert "dead events   go to dead; also events that were delivered 3 times\n" in shown
    assert "consumed      " not in shown
    assert "readers       none\n" in shown

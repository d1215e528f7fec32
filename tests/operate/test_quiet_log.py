"""The log of a busy realm: who came, who went, what was made and deleted; no line a request."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

import penstock
from penstock_testing.process import ServerProcess


@pytest.mark.process
def test_the_log_tells_who_comes_and_goes_and_what_is_made_and_deleted(tmp_path: Path) -> None:
    with ServerProcess(tmp_path / "data") as server:
        started = server.log
        with penstock.connect(server.url) as session:
            channel = session.channels.create("orders")
            channel.durables.create("billing", type="shared")
            session.queues.create("work")
            session.joins.create("orders", "work")
            for _ in range(5):
                channel.publish(b"one")
                session.info()
                with pytest.raises(penstock.NameDoesNotExist):
                    session.channels.get("unknown")
            session.joins.delete("orders", "work")
            channel.durables.delete("billing")
            session.channels.delete("orders")
        server.terminate()
        lines = [msgspec.json.decode(line) for line in server.log[len(started) :].splitlines()]

    (opened,) = (line for line in lines if line["event"] == "connection.opened")
    (closed,) = (line for line in lines if line["event"] == "connection.closed")
    assert (opened["protocol"], opened["tls"]) == ("native", False)
    assert opened["user"].endswith("@127.0.0.1")
    assert closed["connection"] == opened["connection"]
    assert closed["user"] == opened["user"]
    assert closed["lasted_s"] >= 0
    about = [
        (line["event"], line.get("name") or line.get("source"))
        for line in lines
        if line["event"].partition(".")[0] in ("store", "durable", "join")
    ]
    assert about == [
        ("store.created", "orders"),
        ("durable.created", "billing"),
        ("store.created", "work"),
        ("join.created", "orders"),
        ("join.deleted", "orders"),
        ("durable.deleted", "billing"),
        ("store.deleted", "orders"),
    ]
    expected_events = {"connection.opened", "connection.closed", "realm.stopping", "realm.stopped"}
    assert {line["event"] for line in lines} - {event for event, _ in about} == expected_events

"""The realm by HTTP: what it is, who is connected, what its pipelines say, pausing."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

import msgspec

import penstock
from packages.server.tests.frontends.http.asking import Web


def test_the_realm_is_described(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders")

    shown = web.get("realm")

    assert (shown["name"], shown["version"], shown["mode"]) == (
        "penstock",
        penstock.__version__,
        "off",
    )
    assert (shown["channels"], shown["connections"]) == (1, 1)
    assert shown["started"] < shown["now"]


def test_publishing_is_paused_and_goes_on(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders")

    assert web.send("PATCH", "realm", {"paused": True})["publishing_paused"]
    refused = web.ask("POST", "channels/orders/events", {"data": "x"})
    assert (refused.status, refused.code) == (503, "publishing-paused")
    assert refused.headers["retry-after"] == "1"
    assert not web.send("PATCH", "realm", {"paused": False})["publishing_paused"]
    assert web.send("POST", "channels/orders/events", {"data": "x"})["count"] == 1


def test_connections_are_listed_and_ended(web: Web, session: penstock.Session) -> None:
    session.channels.create("orders")
    [before] = web.get("connections")["items"]

    assert before["client"].startswith("penstock")
    assert before["user"].endswith("@localhost")
    assert web.send("DELETE", f"connections/{before['id']}") == {"done": True}
    session.channels.list()  # it has come back
    [after] = web.get("connections")["items"]
    assert (after["session"], after["id"]) == (before["session"], str(int(before["id"]) + 1))
    assert web.ask("DELETE", f"connections/{before['id']}").status == 404


def test_pipelines_are_read_from_the_status_of_their_runs(tmp_path: Path) -> None:
    place = tmp_path / "flights"
    (place / "archive" / "query").mkdir(parents=True)
    status = {"state": "runs", "pid": os.getpid(), "progress": {"rows": 7}}
    (place / "archive.json").write_bytes(msgspec.json.encode(status))
    (place / "notes.json").write_text("no status")
    with penstock.Realm(http__pipelines=str(tmp_path)) as realm:
        web = Web(realm.listen_http())

        [shown] = web.get("pipelines")["items"]

        assert shown == {
            "name": "flights",
            "steps": [
                {
                    "name": "archive",
                    "status": status,
                    "state": "broken off",
                    "batch": None,
                    "next": {},
                    "lag": {},
                }
            ],
        }
        assert web.get("pipelines/flights") == shown
        assert web.ask("GET", "pipelines/other").status == 404


def test_pipelines_say_where_they_stand_and_how_far_they_are_behind(tmp_path: Path) -> None:
    place = tmp_path / "flights"
    query = place / "late" / "query"
    for folder in ("commits", "offsets"):
        (query / folder).mkdir(parents=True)
    (query / "commits" / "4").touch()
    offset = '{"c":{"gone":{"e":"x","n":9},"orders":{"e":"y","n":1}},"v":1}'
    (query / "offsets" / "4").write_text(f"v1\n{{}}\n{offset}")
    (query / "offsets" / "5").write_text("v1\n{}\n{}")  # planned, and not done
    (place / "late.json").write_bytes(msgspec.json.encode({"state": "runs", "pid": 1}))
    with penstock.Realm(http__pipelines=str(tmp_path)) as realm, realm.connect() as session:
        orders = session.channels.create("orders")
        orders.publish_many([penstock.Event(b"x")] * 5)
        web = Web(realm.listen_http())
        with (place / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            [running] = web.get("pipelines/flights")["steps"]
            lock.write("process 2, since 2026-01-01 00:00:00 UTC")  # runs other steps
            lock.flush()
            [of_another_run] = web.get("pipelines/flights")["steps"]
        [remaining_step] = web.get("pipelines/flights")["steps"]

    states = [step["state"] for step in (running, of_another_run, remaining_step)]
    assert states == ["runs", "broken off", "broken off"]
    assert running["batch"] == 4
    assert running["next"] == {"gone": 9, "orders": 1}
    assert running["lag"] == {"gone": None, "orders": 4}


def test_me_returns_the_principal(web: Web) -> None:
    me = web.get("me")

    assert (me["user"], me["host"], me["mode"]) == ("anonymous", "127.0.0.1", "off")


def test_it_is_healthy_and_ready_until_it_ends(web: Web) -> None:
    assert web.get("/health") == {"status": "ok"}
    assert web.get("/ready") == {"status": "ok"}

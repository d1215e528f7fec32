"""Merge channels over restarts and imports, and what the tools for stores say of them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from secrets import token_hex
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Channel
from penstock_server.bootstrap.stopped import verify_store

pytestmark = [pytest.mark.spec("K2", "K4", "S1"), pytest.mark.slow]

KINDS = ("persistent", "mixed", "paged")
ROWS = 500
SMALL: dict[str, Any] = {"storage__journal_bytes": 1 << 20, "storage__seal_interval_ms": 1}
"""A snapshot is taken soon."""


def states(channel: Channel) -> dict[Any, dict[str, Any]]:
    return {event.properties["n"]: event.properties for event in channel.browse()}


def fill(channel: Channel) -> None:
    """States and deltas of them, with a new property."""
    channel.publish_table(pa.table({"n": range(ROWS), "a": [1.0] * ROWS}))
    channel.publish_table(pa.table({"n": range(0, ROWS, 2), "b": ["x"] * (ROWS // 2)}), delta=True)


def long(channel: Channel) -> None:
    """Deltas that fill the journal."""
    words = [token_hex(100) for _ in range(ROWS)]
    channel.publish_table(pa.table({"n": range(ROWS), "long": words}), delta=True)


def without_long(states: dict[Any, dict[str, Any]]) -> dict[Any, dict[str, Any]]:
    assert all(len(state.pop("long")) == 200 for state in states.values())
    return states


def wanted(n: int) -> dict[str, Any]:
    return {"n": n, "a": 1.0, **({"b": "x"} if n % 2 == 0 else {})}


@pytest.fixture(params=KINDS)
def directory(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    path = tmp_path / "data"
    with penstock.Realm(path) as realm, realm.connect() as session:
        fill(session.channels.create("rates", engine="merge", keys={"n": 1}, type=request.param))
    yield path
    assert asyncio.run(verify_store(path)).findings == []


def test_states_are_there_after_a_restart_and_go_on(directory: Path) -> None:
    with penstock.Realm(directory) as realm, realm.connect() as session:
        rates = session.channels.get("rates")
        before = states(rates)
        rates.update(3, c=True)
    with penstock.Realm(directory) as realm, realm.connect() as session:
        after = states(session.channels.get("rates"))

    assert before == {n: wanted(n) for n in range(ROWS)}
    assert after == {**before, 3: {**wanted(3), "c": True}}


def test_snapshots_hold_the_states(directory: Path) -> None:
    with penstock.Realm(directory, **SMALL) as realm, realm.connect() as session:
        rates = session.channels.get("rates")
        while not list(directory.rglob("*.snap")):
            long(rates)
        rates.publish_table(pa.table({"n": range(ROWS), "c": [29] * ROWS}), delta=True)
    with penstock.Realm(directory) as realm, realm.connect() as session:
        state_by_key = without_long(states(session.channels.get("rates")))

    assert state_by_key == {n: {**wanted(n), "c": 29} for n in range(ROWS)}


def test_an_import_is_merged_into_before_and_after_a_snapshot(
    directory: Path, tmp_path: Path
) -> None:
    with penstock.Realm(directory) as realm, realm.connect() as session:
        session.channels.export("rates", tmp_path / "out")
        copy = session.channels.import_from(tmp_path / "out", "copy")
        copy.publish_table(pa.table({"n": range(0, ROWS, 5), "c": [1] * (ROWS // 5)}), delta=True)
        live = states(copy)
    with penstock.Realm(directory, **SMALL) as realm, realm.connect() as session:
        copy = session.channels.get("copy")
        restarted = states(copy)
        while copy.info().storage.sealed_files:  # a snapshot holds their rows, too
            long(copy)
    with penstock.Realm(directory) as realm, realm.connect() as session:
        again = without_long(states(session.channels.get("copy")))

    merged = {n: {**wanted(n), **({"c": 1} if n % 5 == 0 else {})} for n in range(ROWS)}
    assert live == merged
    assert restarted == merged
    assert again == merged


def test_damaged_states_are_told_and_set_aside(tmp_path: Path) -> None:
    path = tmp_path / "data"
    with penstock.Realm(path, **SMALL) as realm, realm.connect() as session:
        rates = session.channels.create("rates", engine="merge", keys={"n": 1}, type="persistent")
        while not list(path.rglob("*.snap")):
            fill(rates)
            long(rates)
    (snapshot,) = path.rglob("*.snap")
    content = bytearray(snapshot.read_bytes())
    content[len(content) // 2] ^= 0xFF
    snapshot.write_bytes(content)

    findings = asyncio.run(verify_store(path)).findings

    assert any("snapshot" in finding.file for finding in findings)

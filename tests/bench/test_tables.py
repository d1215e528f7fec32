"""The clients of S22 and S22L: what they measure, and what they refuse."""

from __future__ import annotations

from contextlib import closing

import pytest

import penstock
from bench import table_lookups
from bench.pacing import at_rate
from bench.table_loads import LoadJob, TableLoads
from bench.table_lookups import WARM_UP, LookupJob, measured
from tests.loops import on_a_loop


@pytest.fixture
def http_port(realm: penstock.Realm) -> int:
    return int(realm.listen_http().rpartition(":")[2])


def lookups(http_port: int, client: str) -> LookupJob:
    return LookupJob("", http_port, "orders", client=client, lookups=2, pause_s=0.0)


@pytest.mark.slow
@pytest.mark.parametrize("client", ["pyiceberg", "duckdb"])
def test_each_published_event_is_looked_up_once(
    session: penstock.Session, http_port: int, client: str
) -> None:
    orders = session.channels.create("orders")

    figures = measured(lookups(http_port, client), orders)

    assert 0 < figures["p50_us"] <= figures["max_us"]
    assert figures["events_per_s"] > 0
    assert orders.read().num_rows == WARM_UP + 2 + 1


def test_an_acknowledged_event_that_is_not_in_the_table_ends_the_measurement(
    session: penstock.Session, http_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_lookups, "CLIENTS", {"blind": lambda job: lambda event_id: 0})

    with pytest.raises(AssertionError, match="0 rows for the acknowledged event 0"):
        measured(lookups(http_port, "blind"), session.channels.create("orders"))


@pytest.mark.slow
def test_new_events_are_published_before_each_load_but_the_first(
    session: penstock.Session, http_port: int
) -> None:
    orders = session.channels.create("orders")
    job = LoadJob("", http_port, "orders", new_events=10, loads=2)

    with closing(TableLoads(job, session)) as loads:
        figures = loads.measured()

    assert figures["first_load_ms"] > 0
    assert figures["p50_us"] > 0
    assert orders.read().num_rows == 10 * (3 + 2)


@pytest.mark.slow
def test_a_load_that_is_refused_ends_the_measurement(
    session: penstock.Session, http_port: int
) -> None:
    session.channels.create("orders")
    job = LoadJob("", http_port, "orders", new_events=0)
    with closing(TableLoads(job, session)) as loads:
        session.channels.delete("orders")

        with pytest.raises(RuntimeError, match="NoSuchTableException"):
            loads.load_s()


@pytest.mark.parametrize("sleeps", [False, True])
@on_a_loop
async def test_a_pace_calls_each_number_once(*, sleeps: bool) -> None:
    calls: list[int] = []

    async def publish(number: int) -> None:
        calls.append(number)

    latencies = await at_rate(publish, 100, 0.1, sleeps=sleeps)

    assert calls == list(range(10))
    assert len(latencies) == 10
    assert min(latencies) >= 0

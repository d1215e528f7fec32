"""The guide's table of parts that one protocol cannot express: its rows of HTTP, one by one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from tests.docs.protocol_pairs import PairRow, rows_of


class Stage:
    """A channel that is published to and read over HTTP."""

    def __init__(self, session: penstock.Session, web: Web) -> None:
        self._web = web
        self._channel = session.channels.create("c")

    def is_refused(self, event: dict[str, Any], status: int) -> bool:
        """Whether an event is refused and counted, and a whole batch with it."""
        before = self._refusals()
        single = self._web.ask("POST", "channels/c/events", event)
        many = self._web.ask("POST", "channels/c/events", {"events": [{"data": "a"}, event]})
        assert self._channel.info().events == 0
        assert self._refusals() == before + 2
        return (single.status, many.status) == (status, status)

    def scheduled(self, event: dict[str, Any]) -> list[str]:
        """Publish an event, and return the delivery times of all events that wait."""
        self._web.send("POST", "channels/c/events", event)
        return [waiting["deliver_at"] for waiting in self._web.get("schedule")["items"]]

    def shown(self, **properties: Any) -> tuple[Any, Any]:
        """The properties of an event and their types, as HTTP shows them."""
        self._channel.publish(b"", properties=properties)
        (event,) = self._web.get("channels/c/events")["items"]
        return event["properties"], event.get("types")

    def _refusals(self) -> float:
        lines = self._web.ask("GET", "/metrics").data.decode().splitlines()
        return sum(
            float(line.rpartition(" ")[2])
            for line in lines
            if line.startswith("penstock_refused_total{")
        )


def no_delivery_time(stage: Stage) -> None:
    for deliver_at in ("soon", 1e300, True):
        assert stage.is_refused({"data": "a", "deliver_at": deliver_at}, 400)


def delivery_time_without_zone(stage: Stage) -> None:
    assert stage.scheduled({"data": "a", "deliver_at": "2099-01-01T00:00:00"}) == [
        "2099-01-01T00:00:00Z"
    ]


def time(stage: Stage) -> None:
    delivery_time = datetime(2030, 1, 2, hour=3, minute=4, second=5, tzinfo=UTC)
    assert stage.shown(at=delivery_time) == ({"at": "2030-01-02T03:04:05Z"}, {"/at": "time"})


def large_integer(stage: Stage) -> None:
    assert stage.is_refused({"data": "a", "properties": {"n": 1 << 63}}, 422)


def no_numbers(stage: Stage) -> None:
    properties, types = stage.shown(a=float("nan"), b=float("inf"), c=float("-inf"))
    assert properties == {"a": None, "b": None, "c": None}
    assert types == {"/a": "nan", "/b": "inf", "/c": "-inf"}


def binary(stage: Stage) -> None:
    assert stage.shown(b=b"\x00\xff") == ({"b": "AP8="}, {"/b": "bytes"})


CASES: Final[Mapping[PairRow, Callable[[Stage], None]]] = {
    (
        "`deliver_at` that is neither a time nor a number of seconds",
        "HTTP",
        "all",
    ): no_delivery_time,
    ("`deliver_at` without a zone", "HTTP", "all"): delivery_time_without_zone,
    ("time as a property", "all", "HTTP"): time,
    ("integer above 2^63-1", "HTTP", "all"): large_integer,
    ("NaN and infinity", "all", "HTTP"): no_numbers,
    ("bytes as a property", "all", "HTTP"): binary,
}


@pytest.mark.parametrize("row", rows_of("HTTP"), ids=lambda row: "-".join(row))
def test_http_behaves_as_the_table_states(
    session: penstock.Session, web: Web, row: PairRow
) -> None:
    CASES[row](Stage(session, web))


def test_every_case_is_in_the_table() -> None:
    assert set(CASES) == set(rows_of("HTTP"))

"""A realm that reads no publishers for seconds says so, and one that is only busy does not."""

from __future__ import annotations

import pytest

import penstock
from packages.server.tests.frontends.http.asking import Web
from penstock_server.frontends.http import http_service, server
from penstock_server.frontends.http.standstill import Standstill


def test_a_backlog_that_does_not_get_less_is_a_standstill() -> None:
    standstill = Standstill()
    for second in range(4):
        standstill.update(second, (100, 7), is_congested=True)

    assert standstill.lasts_s(5) == 5


def test_a_backlog_that_is_worked_off_is_none() -> None:
    standstill = Standstill()
    for second, backlog in enumerate([(100, 7), (90, 7), (95, 6), (95, 9), (80, 10)]):
        standstill.update(second, backlog, is_congested=True)

    assert standstill.lasts_s(5) == 1


def test_it_ends_when_publishers_are_read() -> None:
    standstill = Standstill()
    standstill.update(0, (100, 0), is_congested=True)
    standstill.update(9, (100, 0), is_congested=False)

    assert standstill.lasts_s(20) == 0


def test_the_realm_is_not_ready_while_it_lasts_and_lives(
    web: Web, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_service, "STANDSTILL_S", 0.001)
    monkeypatch.setattr(server, "CHECK_S", 0.01)
    monkeypatch.setattr(http_service.HttpService, "is_congested", True)
    while (reply := web.ask("GET", "/ready")).status == 200:
        pass

    assert (reply.status, reply.document) == (503, {"status": "standstill"})
    assert web.ask("GET", "/health").status == 200
    monkeypatch.setattr(http_service.HttpService, "is_congested", False)
    while web.ask("GET", "/ready").status != 200:
        pass


def test_a_realm_at_ease_is_ready(realm: penstock.Realm, web: Web) -> None:
    assert web.get("/ready") == {"status": "ok"}

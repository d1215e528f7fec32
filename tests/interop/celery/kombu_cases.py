"""kombu's integration tests that any transport can pass, for ``penstock://``. The module ``t`` is
in kombu's source distribution."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any
from uuid import uuid4

import kombu
import pytest
from t.integration import common  # type: ignore[import-not-found]

ARRIVAL_S = 0.3
"""Seconds without a message after which a queue counts as drained."""


class DrainingConnection(kombu.Connection):  # type: ignore[misc]
    """A connection whose ``drain_events`` delivers all messages, as a connection of py-amqp does. A
    virtual transport delivers one message with each call."""

    def drain_events(self, **options: Any) -> None:
        super().drain_events(**options)
        with suppress(socket.timeout):
            while True:
                super().drain_events(timeout=ARRIVAL_S)


def virtual_host() -> str:
    """Return a URL of the realm with a virtual host of the test's own."""
    return f"{os.environ['REALM']}/{uuid4().hex[:8]}"


@pytest.fixture
def connection() -> kombu.Connection:
    return kombu.Connection(virtual_host())


@pytest.fixture
def invalid_connection() -> kombu.Connection:
    return kombu.Connection("penstock://localhost:1")


@pytest.fixture
def failover_connection() -> kombu.Connection:
    return kombu.Connection(f"penstock://localhost:1;{virtual_host()}")


class test_Priority(common.BasePriority):  # type: ignore[misc]  # noqa: N801  a name of kombu
    @pytest.fixture
    def connection(self) -> kombu.Connection:
        return DrainingConnection(virtual_host())


test_basic = common.BasicFunctionality
test_exchanges = common.BaseExchangeTypes
test_time_to_live = common.BaseTimeToLive
test_message = common.BaseMessage
test_failover = common.BaseFailover
test_event_loop = common.BaseEventLoop

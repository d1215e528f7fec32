"""A server that tests can kill and restart, and a session that reconnects to it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

import penstock
from penstock.client.sync.sync import Session
from tests.integration.lives import WAIT_S, Lives


@pytest.fixture
def lives(tmp_path: Path) -> Iterator[Lives]:
    lives = Lives(tmp_path / "realm")
    yield lives
    lives.server.__exit__(None, None, None)


@pytest.fixture
def session(lives: Lives) -> Iterator[Session]:
    with penstock.connect(lives.url, reconnect_timeout=WAIT_S) as session:
        yield session

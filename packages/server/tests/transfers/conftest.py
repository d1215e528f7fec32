"""Two realms on disk, and a folder between them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

import penstock
from packages.server.tests.transfers.moving import Start
from penstock.client.sync.sync import Session


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """A function that opens a realm with a given name on disk."""
    with ExitStack() as running:

        def opened(name: str, **settings: object) -> penstock.Realm:
            settings.setdefault("storage__seal_interval_ms", 10)
            return running.enter_context(penstock.Realm(tmp_path / name, **settings))

        yield opened


@pytest.fixture
def realm(start: Start) -> penstock.Realm:
    return start("here")


@pytest.fixture
def source_session(realm: penstock.Realm) -> Iterator[Session]:
    with realm.connect() as session:
        yield session


@pytest.fixture
def target_session(start: Start) -> Iterator[Session]:
    with start("there").connect() as session:
        yield session


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "export"

"""One Spark session for all tests of this folder: starting one takes longer than most tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

import penstock
from penstock.client.sync.sync import Channel, Session
from penstock_spark.connections import disconnect
from penstock_spark.session.session import session
from tests.patience import until


@pytest.fixture(scope="session")
def spark(java: None) -> Iterator[SparkSession]:
    """A session with two cores that runs a failed task up to four times."""
    if (others := SparkSession.getActiveSession()) is not None:
        others.stop()
    started = session("penstock-tests", "local[2,4]", **{"spark.driver.memory": "1g"})
    yield started
    started.stop()


@pytest.fixture
def realm(tmp_path: Path) -> Iterator[penstock.Realm]:
    with penstock.Realm(tmp_path / "realm") as running:
        yield running
        disconnect()


@pytest.fixture
def url(realm: penstock.Realm) -> str:
    """The realm's URL for other processes."""
    return realm.listen()


@pytest.fixture
def client(realm: penstock.Realm) -> Iterator[Session]:
    with realm.connect() as connected:
        yield connected


@pytest.fixture
def sealed() -> Callable[[Channel, int], None]:
    """A function that waits until a channel has a number of sealed files."""

    def wait(channel: Channel, files: int) -> None:
        until(lambda: channel.info().storage.sealed_files >= files)

    return wait

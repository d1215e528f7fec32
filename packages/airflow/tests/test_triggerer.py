"""Airflow's triggerer with the DAGs of the page about it, over a realm in a process, with both
killed."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import penstock
from penstock_testing.process import ServerProcess
from tests.docs.pages import ROOT, blocks
from tests.patience import until

pytestmark = pytest.mark.process

AIRFLOW = ROOT / "build" / "airflow" / "bin"
PAGE = ROOT / "docs" / "howto" / "airflow.md"
COUNT = 30


class AirflowHome:
    """A folder with the DAGs of the page and a database of Airflow that knows them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._database = folder / "airflow.db"
        self.environment = {
            **os.environ,
            "AIRFLOW_HOME": str(folder),
            "AIRFLOW__CORE__DAGS_ARE_PAUSED_AT_CREATION": "False",
            "AIRFLOW__CORE__DAGS_FOLDER": str(folder / "dags"),
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{self._database}",
            # Another triggerer takes the triggers of a killed one after this time.
            "AIRFLOW__TRIGGERER__JOB_HEARTBEAT_SEC": "1",
            "AIRFLOW__TRIGGERER__TRIGGERER_HEALTH_CHECK_THRESHOLD": "3",
        }
        (folder / "dags").mkdir()
        for block in blocks(PAGE):
            if block.file:
                (folder / "dags" / block.file).write_text(block.text, encoding="utf-8")
        done = subprocess.run(
            [AIRFLOW / "python", Path(__file__).with_name("airflow_setup.py")],
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        self.observations: Mapping[str, Any] = json.loads(done.stdout.splitlines()[-1])

    @contextmanager
    def triggerer(self, url: str) -> Iterator[subprocess.Popen[bytes]]:
        """``airflow triggerer`` with its processes; killed at the end of the block if they still
        run."""
        with (self._folder / "triggerer.log").open("ab") as log:
            process = subprocess.Popen(
                [AIRFLOW / "airflow", "triggerer", "--skip-serve-logs"],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**self.environment, "AIRFLOW_CONN_PENSTOCK_DEFAULT": url},
                start_new_session=True,
            )
            try:
                yield process
            finally:
                kill(process)

    def payloads(self) -> list[dict[str, Any]]:
        """The payloads of all asset events that Airflow has stored."""
        with closing(sqlite3.connect(self._database, timeout=60)) as database:
            rows = database.execute("SELECT extra FROM asset_event ORDER BY id").fetchall()
        return [json.loads(extra)["payload"] for (extra,) in rows]

    def data(self) -> set[str]:
        """The data of all events that Airflow has stored."""
        return {payload["data"] for payload in self.payloads()}

    @contextmanager
    def storing_nothing(self) -> Iterator[None]:
        """Let Airflow store nothing during the block, which should be short."""
        with closing(sqlite3.connect(self._database, timeout=60, isolation_level=None)) as database:
            database.execute("BEGIN IMMEDIATE")
            yield
            database.execute("ROLLBACK")


def until_in(triggerer: subprocess.Popen[bytes], happened: Callable[[], object]) -> None:
    """Call ``happened`` several times a second until its result is true. Fail if the triggerer
    ends."""

    def happens() -> object:
        with suppress(subprocess.TimeoutExpired):
            raise AssertionError(f"the triggerer has ended: {triggerer.wait(timeout=0.2)}")
        return happened()

    until(happens)


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a triggerer with all its processes."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory) -> AirflowHome:
    if not (AIRFLOW / "airflow").exists():
        pytest.skip("Airflow is not installed; scripts/airflow.sh installs it in build/airflow")
    return AirflowHome(tmp_path_factory.mktemp("airflow"))


class Shop:
    """The channel, durable and queue of the page, and what Airflow has to do with their events."""

    def __init__(self, session: penstock.Session) -> None:
        self._orders = session.channels.create("orders", type="persistent")
        self._billing = self._orders.durables.create("billing", type="shared")
        self._parcels = session.queues.create("parcels")

    def publish(self, *names: str) -> None:
        """Publish an order and a parcel of each name."""
        self._orders.publish_many([penstock.Event(f"order {name}".encode()) for name in names])
        self._parcels.push_many([penstock.Event(f"parcel {name}".encode()) for name in names])

    @property
    def held(self) -> tuple[int, int]:
        """Numbers of orders and parcels that clients hold."""
        return self._billing.info().in_flight, self._parcels.info().in_flight

    @property
    def left(self) -> int:
        """Number of events that are not acknowledged."""
        return self._billing.info().outstanding + self._parcels.info().events


def named(*names: str) -> set[str]:
    """The data of the events that ``Shop.publish`` publishes."""
    return {f"{kind} {name}" for name in names for kind in ("order", "parcel")}


def test_events_of_a_killed_triggerer_come_again(airflow: AirflowHome, tmp_path: Path) -> None:
    lost = [f"lost {number}" for number in range(COUNT)]
    with ServerProcess(tmp_path / "realm") as server, penstock.connect(server.url) as session:
        shop = Shop(session)
        shop.publish("first")
        with airflow.triggerer(server.url) as first:
            until_in(first, lambda: not shop.left)
            assert airflow.data() == named("first")
            with airflow.storing_nothing():
                shop.publish(*lost)
                # The window of the queue's trigger is 20.
                until_in(first, lambda: shop.held == (COUNT, 20))
                kill(first)
        assert airflow.data() == named("first")
        with airflow.triggerer(server.url) as second:
            until_in(second, lambda: not shop.left)
            second.send_signal(signal.SIGTERM)
            assert second.wait(timeout=60) == 0

    assert airflow.data() == named("first", *lost)
    payloads = {payload["data"]: payload for payload in airflow.payloads()}
    assert payloads["order first"]["channel"] == "orders"
    assert payloads["order first"]["event_id"] == 0
    assert payloads["parcel first"]["queue"] == "parcels"
    assert payloads["order lost 0"]["redelivery_count"] == 1


def test_a_killed_realm_loses_nothing_and_the_triggers_go_on(
    airflow: AirflowHome, tmp_path: Path
) -> None:
    names = [f"kept {number}" for number in range(COUNT)]
    folder = tmp_path / "realm"
    with ServerProcess(folder) as server:
        port = str(urlsplit(server.url).port)
        with penstock.connect(server.url) as session, airflow.triggerer(server.url) as triggerer:
            shop = Shop(session)
            shop.publish(*names)
            until_in(triggerer, lambda: airflow.data() & named(*names))
            server.kill()
            with ServerProcess(folder, "--port", port):
                shop.publish("last")
                until_in(triggerer, lambda: not shop.left)

    assert airflow.data() >= named(*names, "last")


def test_the_scheme_finds_the_trigger(airflow: AirflowHome) -> None:
    defaults = {"url": None, "conn_id": "penstock_default", "selector": ""}

    assert airflow.observations["durable"] == [
        "penstock_airflow.trigger.PenstockTrigger",
        {**defaults, "queue_name": None, "channel": "orders", "durable": "billing", "window": 7},
    ]
    assert airflow.observations["queue"][1] == {
        **defaults,
        "url": "penstock://host",
        "queue_name": "work",
        "channel": None,
        "durable": None,
        "window": 100,
    }


@pytest.mark.parametrize("wrong", ["both", "no durable", "none"])
def test_a_trigger_reads_one_queue_or_one_durable(airflow: AirflowHome, wrong: str) -> None:
    assert "give queue_name for a queue, or channel and durable" in airflow.observations[wrong]


def test_a_window_has_bounds(airflow: AirflowHome) -> None:
    assert airflow.observations["window"] == "window is 0; allowed are 1 to 1,000"


def test_a_uri_names_a_queue_or_a_durable(airflow: AirflowHome) -> None:
    assert airflow.observations["URI of a queue"] == {
        "url": "penstock://user@a:1,b:2",
        "queue_name": "parcels/new",
    }
    assert airflow.observations["URI of a durable"] == {
        "url": "penstocks://a",
        "channel": "orders/*",
        "durable": "billing",
    }
    assert "looks like penstock://host:9000/work" in airflow.observations["URI without a name"]


def test_a_connection_of_airflow_has_the_url(airflow: AirflowHome) -> None:
    assert airflow.observations["connection"] == "penstocks://me%40x:p%2Fw@a:9001"
    assert airflow.observations["plain connection"] == "penstock://a:1,b:2"
    assert "has the type 'http'" in airflow.observations["other connection"]

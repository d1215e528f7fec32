"""A standalone cluster of two workers whose executors cannot see the realm's folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import penstock
from penstock.client.sync.sync import Channel
from penstock_server.bootstrap.copies import copy_files
from penstock_spark.session.jvm import find_jvm, java_home
from penstock_spark.session.session import spark_home
from penstock_testing.process import ServerProcess, search_path
from tests.java import QUICK_START
from tests.objects import ObjectStore, object_store
from tests.patience import until

pytestmark = [pytest.mark.usefixtures("java"), pytest.mark.slow, pytest.mark.process]

ROWS = 42_000
SEALED_ROWS = 40_000
PER_FILE = 10_000
COPY = "bucket/copy"

ONLY_THE_REALM_SEES = Path("/proc/self/cwd/realm")
"""Leads each process somewhere else: what the realm says of its files is true on its own machine
only, as with executors on others."""

DRIVER = """
import json, os, signal, sys
import pyarrow as pa
from pathlib import Path
from penstock_spark.session.session import session
from penstock_spark.source import PenstockSource
from penstock_spark.writing.writing import ChannelStreamWriter

url, master, options, folder, copy = sys.argv[1:]
spark = session("cluster", master, **json.loads(options))

def executor():
    # A task runs in a child of the executor's Python daemon.
    return int(Path(f"/proc/{os.getppid()}/stat").read_text().rpartition(")")[2].split()[1])

def who(batches):
    for batch in batches:
        yield pa.record_batch({"pid": [executor()], "sees": [Path(sys_path).exists()]})

class Doomed(ChannelStreamWriter):
    # The executor dies when a task of the second micro-batch has put its rows aside.
    def write(self, iterator):
        from pyspark import TaskContext
        done = super().write(iterator)
        task = TaskContext.get()
        if task.getLocalProperty("streaming.sql.batchId") == "1" and task.partitionId() == 0:
            try:
                (Path(folder) / "killed").touch(exist_ok=False)
            except FileExistsError:
                return done
            (Path(folder) / "killed").write_text(str(executor()))
            os.kill(executor(), signal.SIGKILL)
        return done

class DoomedSource(PenstockSource):
    @classmethod
    def name(cls):
        return "doomed"
    def streamWriter(self, schema, overwrite):
        return Doomed(self._sink(schema, overwrite=overwrite))

spark.dataSource.register(DoomedSource)

def table(**more):
    found = spark.read.format("penstock").options(url=url, channel="orders", minPartitions=4)
    return found.options(**more).load()

def stream(**more):
    found = spark.readStream.format("penstock").options(
        url=url, channel="orders", startingOffsets="earliest", maxEventsPerTrigger=15_000,
        minPartitions=2, **more,
    )
    return found.load()

def drain(rows, kind, name, **more):
    query = (
        rows.writeStream.format(kind).options(checkpointLocation=f"{folder}/{name}", **more)
        .trigger(availableNow=True).start()
    )
    query.awaitTermination()
    return [progress["numInputRows"] for progress in query.recentProgress]

def sums(rows):
    return list(rows.selectExpr("count(*)", "sum(n)", "max(event_id)").first())

sys_path = json.loads(spark.read.format("penstock").options(url=url, channel="paths")
    .load().first()["data"])
found = {}
seen = spark.range(8).repartition(8).mapInArrow(who, "pid long, sees boolean").collect()
found["executors"] = sorted({row["pid"] for row in seen})
found["see"] = any(row["sees"] for row in seen)
found["auto"] = sums(table())
found["remote"] = sums(table(access="remote", selector="n >= 12000"))
try:
    table(access="local").count()
except Exception as error:
    found["local"] = str(error)
found["copied"] = sums(table(files=copy))
found["from id"] = sums(table(files=copy, access="local", startingOffsets=30_000))
# A job says what the first of its tasks that failed says, so each damage is read by itself.
for damage, first, end in (("only copied", 0, 20_000), ("only rotten", 20_000, 30_000)):
    try:
        table(files=copy, access="local", startingOffsets=first, endingOffsets=end).count()
    except Exception as error:
        found[damage] = str(error)
drain(stream(files=copy), "parquet", "followed", path=f"{folder}/followed-copy")
found["followed"] = sums(spark.read.parquet(f"{folder}/followed-copy"))
table(files=copy).explain(True)
found["parquet"] = drain(stream(), "parquet", "streamed", path=f"{folder}/copy")
found["streamed"] = sums(spark.read.parquet(f"{folder}/copy"))
found["written"] = drain(stream().select("n"), "doomed", "written", url=url, channel="out")
spark.stop()
print(json.dumps(found))
"""


@contextmanager
def ended_at_exit(process: subprocess.Popen[Any]) -> Iterator[None]:
    """A process that leads a group of its own, with what it has started: executors, workers."""
    try:
        yield
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
        with suppress(ProcessLookupError):  # none is left
            os.killpg(process.pid, signal.SIGKILL)


def daemon(running: ExitStack, name: str, log: Path, *arguments: str) -> None:
    """Start a process of the cluster."""
    home = spark_home()
    environment = os.environ | {
        "JAVA_HOME": str(java_home(find_jvm())),
        "SPARK_HOME": str(home),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DAEMON_MEMORY": "128m",
        "SPARK_DAEMON_JAVA_OPTS": QUICK_START,
        "PYSPARK_PYTHON": sys.executable,
        "PYTHONPATH": search_path(),
    }
    with log.open("wb") as output:
        process = subprocess.Popen(
            [home / "bin" / "spark-class", f"org.apache.spark.deploy.{name}", *arguments],
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    running.enter_context(ended_at_exit(process))


def logged(log: Path, pattern: str) -> str:
    """Return the first line of a started process."""
    with subprocess.Popen(
        ["tail", "-n", "+1", "-F", log], stdout=subprocess.PIPE, text=True
    ) as lines:
        try:
            assert lines.stdout is not None, "it is a pipe"
            for line in lines.stdout:
                if match := re.search(pattern, line):
                    return match[0]
        finally:
            lines.kill()
    raise AssertionError(f"{log} has ended")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster")


@pytest.fixture(scope="module")
def realm_url(folder: Path) -> Iterator[str]:
    with ExitStack() as running:
        with pytest.MonkeyPatch.context() as elsewhere:
            elsewhere.chdir(folder)
            server = running.enter_context(ServerProcess(ONLY_THE_REALM_SEES))
        with penstock.connect(server.url) as session:
            orders = session.channels.create(
                "orders", type="persistent", storage={"events_per_spindle": PER_FILE}
            )
            orders.publish_table(pa.table({"n": list(range(ROWS))}))
            sealed(orders)
            where = orders.locate(0, ROWS).sealed[0].path
            assert where.startswith(str(ONLY_THE_REALM_SEES))
            paths = session.channels.create("paths", type="persistent")
            paths.publish(data=json.dumps(where).encode())
            session.channels.create("out", type="persistent")
        yield server.url


def sealed(channel: Channel) -> None:
    """Wait until four of its files are there."""
    until(lambda: channel.info().storage.sealed_files >= SEALED_ROWS // PER_FILE)


@pytest.fixture(scope="module")
def master(folder: Path) -> Iterator[str]:
    with ExitStack() as running:
        log = folder / "master.log"
        daemon(
            running, "master.Master", log, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0"
        )
        url = logged(log, r"spark://127\.0\.0\.1:\d+")
        logs = [folder / f"worker-{number}.log" for number in range(2)]
        for log in logs:
            where = ["--work-dir", str(log.with_suffix("")), "--host", "127.0.0.1"]
            size = ["--cores", "1", "--memory", "700m", "--webui-port", "0"]
            daemon(running, "worker.Worker", log, *where, *size, url)
        for log in logs:
            logged(log, "Successfully registered with master")
        yield url


@pytest.fixture(scope="module")
def copy(realm_url: str) -> Iterator[ObjectStore]:
    """A store with a copy of the realm's files that lacks one, has another in part, and a third
    with other bytes in its middle."""
    with object_store() as store:
        with penstock.connect(realm_url) as session:
            copy_files(session, store.uri(COPY))
        missing, stale, rotten, _ = names = sorted(n for n in store.objects if n.endswith("arrow"))
        content = store.objects[rotten]
        del store.objects[missing]
        store.objects[stale] = store.objects[stale][:-1]
        store.objects[rotten] = content[: len(content) // 2].ljust(len(content), b"-")
        assert len(names) == SEALED_ROWS // PER_FILE
        store.requests.clear()
        yield store


@pytest.fixture(scope="module")
def driver_output(folder: Path, realm_url: str, master: str, copy: ObjectStore) -> dict[str, Any]:
    """Return the output of the driver, which runs in a separate process."""
    options = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.memory": "512m",
        "spark.executor.memory": "512m",
        "spark.executor.cores": 1,
        "spark.executor.extraJavaOptions": QUICK_START,
        "spark.sql.shuffle.partitions": 2,
        "spark.ui.enabled": False,
    }
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            DRIVER,
            realm_url,
            master,
            json.dumps(options),
            str(folder),
            copy.uri(COPY),
        ],
        capture_output=True,
        text=True,
        timeout=900,  # generous, because machines are busy
        check=False,
        env=os.environ | {"PYTHONPATH": search_path()},
    )
    assert done.returncode == 0, done.stderr[-6_000:]
    *plans, last = done.stdout.splitlines()
    answer: dict[str, Any] = json.loads(last)
    return answer | {"plans": "\n".join(plans)}


def test_tasks_run_in_two_executors_that_do_not_see_the_realms_files(
    driver_output: dict[str, Any],
) -> None:
    assert len(driver_output["executors"]) == 2
    assert driver_output["see"] is False


def test_a_batch_read_falls_back_to_the_wire(driver_output: dict[str, Any]) -> None:
    assert driver_output["auto"] == [ROWS, ROWS * (ROWS - 1) // 2, ROWS - 1]
    assert driver_output["remote"] == [30_000, sum(range(12_000, ROWS)), ROWS - 1]
    assert 'access is "local"' in driver_output["local"]


def test_executors_read_a_copy_on_an_object_store_and_the_rest_over_the_wire(
    driver_output: dict[str, Any], copy: ObjectStore
) -> None:
    every = [ROWS, ROWS * (ROWS - 1) // 2, ROWS - 1]
    assert driver_output["copied"] == every
    assert driver_output["followed"] == every
    assert driver_output["from id"] == [12_000, sum(range(30_000, ROWS)), ROWS - 1]
    assert re.search(
        "access is .local., but .* has .*, with the option files", driver_output["only copied"]
    )
    assert re.search(
        r"events 20000-29999: bytes .* fail their checksum", driver_output["only rotten"]
    )
    _, _, rotten, sound = sorted({name for name, _ in copy.requests_of("HEAD", "arrow")})
    read = {name for name, span in copy.requests_of("GET", "arrow") if span}
    assert read == {rotten, sound}, "nothing is read of a file that is too short"


def told_to_users(driver_output: dict[str, Any]) -> list[str]:
    return [driver_output[name] for name in ("plans", "only copied", "only rotten")]


def test_executors_say_where_events_came_from_and_nobody_says_who_asks(
    driver_output: dict[str, Any], folder: Path
) -> None:
    logs = [log.read_text(errors="replace") for log in folder.glob("worker-*/**/stderr")]
    lines = [line for log in logs for line in log.splitlines() if "over the wire" in line]
    assert lines
    assert all(re.search(r"\d+ of Copy\('s3://\*\*\*@", line) for line in lines)
    assert not any("very-secret" in text for text in [*logs, *told_to_users(driver_output)])


def test_a_stream_reads_every_event_once(driver_output: dict[str, Any]) -> None:
    assert driver_output["parquet"] == [15_000, 15_000, 12_000]
    assert driver_output["streamed"] == [ROWS, ROWS * (ROWS - 1) // 2, ROWS - 1]


def test_an_executor_killed_in_a_write_neither_loses_nor_doubles_events(
    driver_output: dict[str, Any], realm_url: str, folder: Path
) -> None:
    assert int((folder / "killed").read_text()) in driver_output["executors"]
    assert driver_output["written"] == [15_000, 15_000, 12_000]
    with penstock.connect(realm_url) as session:
        out = session.channels.get("out").read().column("n").to_pylist()
    assert out == list(range(ROWS))

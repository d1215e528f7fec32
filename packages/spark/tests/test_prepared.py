"""The process of a streaming query's source is forked from one that has its imports."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from penstock.client.sync.sync import Session
from penstock_spark.session.pythons import RUNNER, python_for_spark
from tests.patience import until

pytestmark = [
    pytest.mark.process,
    pytest.mark.slow,
    pytest.mark.skipif(not sys.platform.startswith("linux"), reason="elsewhere Python itself runs"),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with the sockets of forking processes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return Path(python_for_spark()).with_name("forks")


@pytest.fixture
def spark_end(tmp_path: Path) -> Iterator[socket.socket]:
    """The socket that Spark waits at for its process."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "s"))
        listening.listen()
        listening.settimeout(60)
        yield listening


@pytest.fixture
def jvm(folder: Path, spark_end: socket.socket) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    """Runs a line of the shell in the place of a JVM; ``start`` is how Spark starts a source."""
    started = []

    def run(line: str) -> subprocess.Popen[str]:
        path = str(spark_end.getsockname())
        variables = {"PYTHON_WORKER_FACTORY_SOCK_PATH": path, "PYTHON_UNIX_DOMAIN_ENABLED": "True"}
        start = f"{python_for_spark()} -m {RUNNER}"
        process = subprocess.Popen(
            ["sh", "-c", line.replace("start", start)],
            env={**os.environ, **variables},
            stdin=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield run
    for process in started:
        process.kill()
        process.communicate()


def connected(spark_end: socket.socket) -> tuple[socket.socket, int]:
    """A process that has connected, and its number."""
    link, _ = spark_end.accept()
    return link, int.from_bytes(link.recv(4), "big")


def parent_of(process: int) -> int:
    return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])


def program_of(process: int) -> str:
    return Path(f"/proc/{process}/cmdline").read_text().replace("\0", " ")


def children() -> Iterator[tuple[int, int, str, str]]:
    """Processes and their parents, each with its number and then its program."""
    for process in map(int, filter(str.isdigit, os.listdir("/proc"))):
        with contextlib.suppress(OSError):  # it has ended
            parent = parent_of(process)
            yield process, parent, program_of(process), program_of(parent)


def is_there(process: int) -> bool:
    return Path(f"/proc/{process}").exists()


@pytest.mark.parametrize("place", ["a folder", "a folder that is gone"])
def test_all_sources_of_a_jvm_are_forked_by_one_process_that_ends_with_it(
    place: str,
    jvm: Callable[[str], subprocess.Popen[str]],
    spark_end: socket.socket,
    folder: Path,
    tmp_path: Path,
) -> None:
    (elsewhere := tmp_path / "elsewhere").mkdir()
    leave = f"rmdir {elsewhere}; " if "gone" in place else ""
    running = jvm(f"cd {elsewhere}; {leave}start & start & wait")
    links, processes = zip(*(connected(spark_end) for _ in range(2)), strict=True)
    parents = {parent_of(process) for process in processes}
    (forks,) = parents
    assert "penstock_spark.session.prepared" in program_of(forks)

    for link in links:
        link.close()
    _, output = running.communicate(timeout=60)

    until(lambda: not is_there(forks))
    assert not any(map(is_there, processes))
    assert not list(folder.iterdir())
    assert not output, "a query that is stopped is no error"


def test_a_source_ends_when_spark_kills_what_it_has_started(
    jvm: Callable[[str], subprocess.Popen[str]], spark_end: socket.socket
) -> None:
    running = jvm("start & wait")
    link, process = connected(spark_end)
    (waiting,) = (child for child, parent, *_ in children() if parent == running.pid)

    os.kill(waiting, signal.SIGTERM)

    until(lambda: not is_there(process))
    link.close()


@pytest.mark.parametrize(
    ("error", "is_printed"), [("BrokenPipeError(32, 'gone')", False), ("ValueError('odd')", True)]
)
def test_a_source_whose_query_has_ended_prints_no_traceback(error: str, is_printed: bool) -> None:
    script = f"""
import contextlib, os
from types import SimpleNamespace
from penstock_spark.session.prepared import _run

def fail(given, answers):
    raise {error}

link = lambda timeout: contextlib.nullcontext()
runner = SimpleNamespace(__file__="runner", main=fail, get_sock_file_to_executor=link)
_run(runner, [os.dup(number) for number in range(3)], dict(os.environ))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)

    assert done.returncode == 1
    assert ("Traceback" in done.stderr) == is_printed


@pytest.mark.parametrize("trouble", ["no folder", "other imports", "another folder"])
def test_where_nothing_can_be_forked_a_new_process_is_the_source(
    trouble: str,
    jvm: Callable[[str], subprocess.Popen[str]],
    spark_end: socket.socket,
    folder: Path,
    tmp_path: Path,
) -> None:
    if trouble == "no folder":
        jvm(f"rmdir {folder}; start & wait")
        connections = [connected(spark_end)]
    else:
        elsewhere = "PYTHONPATH=/nowhere" if trouble == "other imports" else f"cd {tmp_path};"
        jvm(f"start & {elsewhere} start & wait")
        connections = [connected(spark_end) for _ in range(2)]

    parents = [program_of(parent_of(process)) for _, process in connections]

    assert len([program for program in parents if program.startswith("sh -c")]) == 1
    for link, _ in connections:
        link.close()


def test_a_streaming_query_reads_with_a_forked_source(
    spark: SparkSession, client: Session, url: str, tmp_path: Path
) -> None:
    client.channels.create("orders").publish(b"one")
    stream = spark.readStream.format("penstock").option("url", url).option("channel", "orders")
    stream = stream.option("startingOffsets", "earliest")

    query = stream.load().writeStream.format("noop").option("checkpointLocation", str(tmp_path))
    running = query.start()
    running.processAllAvailable()
    sources = [
        process for process, _, _, above in children() if "penstock_spark.session.prepared" in above
    ]
    running.stop()

    assert running.recentProgress[0].numInputRows == 1
    assert sources
    until(lambda: not any(map(is_there, sources)))

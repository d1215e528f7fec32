"""The JMS engine with live subscribers only, watched by the operating system (SEM J4)."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import penstock
from penstock_testing.process import ServerProcess

WRITING = "write,pwrite64,writev,pwritev,pwritev2,fsync,fdatasync,fallocate,ftruncate,rename,unlink"
EVENTS = 5_000
WAIT_S = 60.0


def eventually(is_so: Callable[[], bool]) -> None:
    """Wait until ``is_so()``, on a busy machine, too."""
    pause = threading.Event()
    for _ in range(6_000):
        if is_so():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come about")


def written_bytes(pid: int) -> int:
    """Bytes the process has caused to be written to storage, as the kernel counts them."""
    counts = Path(f"/proc/{pid}/io").read_text()
    return int(counts.split("\nwrite_bytes:")[1].split()[0])


@contextmanager
def watching(pid: int, trace: Path) -> Iterator[Path | None]:
    """Every call of a process that changes files, where strace is installed."""
    strace = shutil.which("strace")
    if strace is None:
        yield None
        return
    watcher = subprocess.Popen(
        [strace, "-f", "-y", "-e", f"trace={WRITING}", "-o", str(trace), "-p", str(pid)],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert watcher.stderr is not None
        attached = watcher.stderr.readline()
        assert "attached" in attached, attached
        yield trace
    finally:
        watcher.terminate()
        watcher.communicate()


def disk_calls(trace: Path, directory: Path) -> list[str]:
    """Calls of the server that write a file below ``directory``, or sync or make room in one."""
    return [
        line
        for line in trace.read_text().splitlines()
        if str(directory) in line and "(" in line and "ENOSYS" not in line
    ]


@pytest.mark.spec("J4")
@pytest.mark.process
@pytest.mark.slow
def test_thousands_of_events_pass_without_one_write_to_a_file(tmp_path: Path) -> None:
    directory = tmp_path / "realm"
    with (
        ServerProcess(directory) as server,
        penstock.connect(server.url) as session,
        penstock.connect(server.url) as reading,
    ):
        orders = session.channels.create("orders", type="persistent", engine="jms")
        subscription = reading.channels.get("orders").subscribe().open()
        orders.publish(b"first")  # its schema, and a reserve of ids
        before = orders.info().counters.published
        with watching(server.pid, tmp_path / "trace") as trace:
            written = written_bytes(server.pid)
            for n in range(EVENTS):
                orders.publish(b"%d" % n)
            got = 0
            while got <= EVENTS:
                batch = subscription.next_batch(WAIT_S)
                assert batch is not None
                got += len(batch)
            eventually(lambda: orders.info().events == 0)

            assert written_bytes(server.pid) == written
            if trace is not None:
                assert disk_calls(trace, directory) == []
                orders.durables.create("witness")  # so that the trace is known to see writes
                eventually(lambda: bool(disk_calls(trace, directory)))
        counters = orders.info().counters
        assert counters.published - before == EVENTS
        assert counters.dropped == EVENTS + 1

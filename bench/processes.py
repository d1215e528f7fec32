"""Server and client processes: free ports, own process ids, clean ends."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TypeVar

import msgspec

from bench.shape import EQUAL_WINDOW, WINDOW_IN, Case, Figures, Missing, Server, peers

ROOT = Path(__file__).parents[1]
"""The folder of the repository."""
_measured: ContextVar[Sequence[Path]] = ContextVar("_measured", default=())
"""The folders from which started processes import Penstock; empty means the installed packages."""
_run_timeout_s: ContextVar[float | None] = ContextVar("_run_timeout_s", default=None)
START_TIMEOUT_S = 60.0
RUN_TIMEOUT_S = 1_200.0
STOP_TIMEOUT_S = 30.0
LACKS = 3
"""Exit status of a client process whose peer lacks something; its stderr names it."""


T = TypeVar("T")


class Job(msgspec.Struct, frozen=True):
    """The work of a client process."""

    shape: str
    peer: str
    case: Case
    server: Server


def sources_of(checkout: Path) -> Sequence[Path]:
    """Return the folders with Penstock's packages in a checkout; empty if it has none."""
    alone = checkout / "src"
    if (alone / "penstock").is_dir():  # before 0.2, all code was in one package
        return (alone,)
    return sorted(checkout.glob("packages/*/src"))


@contextmanager
def sources_at(checkout: Path) -> Iterator[None]:
    """Let processes started within the block use the Penstock of another checkout, with the
    installed packages of this machine and these benchmarks."""
    token = _measured.set(sources_of(checkout))
    try:
        yield
    finally:
        _measured.reset(token)


@contextmanager
def runs_end_after(seconds: float) -> Iterator[None]:
    """Limit the time of each client process started within the block."""
    token = _run_timeout_s.set(seconds)
    try:
        yield
    finally:
        _run_timeout_s.reset(token)


def run_timeout_s() -> float:
    """Return the longest time of a client process, in seconds."""
    return _run_timeout_s.get() or RUN_TIMEOUT_S


def without_client(package: str) -> str:
    """Return why a peer cannot run if the package of its Python client is not installed; empty if
    it is installed."""
    try:
        version(package)
    except PackageNotFoundError:
        return f"its client is not installed: pip install {package}"
    return ""


@contextmanager
def beside(module: str, job: msgspec.Struct, says: str) -> Iterator[None]:
    """Run ``python -m module`` with a job within the block, which begins when the process prints
    the line ``says``.

    Raises ``RuntimeError``, with the process's stderr, if it did not begin or ended by itself.
    """
    command = [sys.executable, "-m", module, msgspec.json.encode(job).decode()]
    with (
        tempfile.TemporaryFile("w+") as errors,
        subprocess.Popen(
            command, env=environment(), stdout=subprocess.PIPE, stderr=errors, text=True
        ) as process,
    ):
        try:
            assert process.stdout is not None, "stdout is a pipe"
            began = process.stdout.readline().strip() == says
            if began:
                yield
            if not began or process.poll() is not None:
                errors.seek(0)
                raise RuntimeError(f"{module} ended by itself: {errors.read()}")
        finally:
            process.kill()


@contextmanager
def server_process(
    command: Sequence[str],
    port: int,
    url: str,
    directory: Path,
    *,
    user: str | None = None,
    more: Mapping[str, str] | None = None,
    stop: signal.Signals = signal.SIGTERM,
) -> Iterator[Server]:
    """Start ``command``, wait until it accepts on ``port``, and end it by its own id after the
    block. ``user`` is the user that it runs as (only root can choose one); ``more`` is added to its
    environment."""
    log = directory.parent / "server.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            cwd=directory,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=environment() | dict(more or {}),
            user=user,
        )
    try:
        _wait_for_port(lambda: process.poll() is None, port, log)
        yield Server(url, process.pid)
    finally:
        process.send_signal(stop)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def wait_for_port(pid: int, port: int, log: Path) -> None:
    """Wait until a process or one of its descendants accepts on ``port``. Raises ``RuntimeError``,
    with the end of ``log``."""
    _wait_for_port(lambda: _is_running(pid), port, log)


def _is_running(pid: int) -> bool:
    """Return whether a process is running; an ended process that was not waited for does not
    count."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _wait_for_port(is_running: Callable[[], bool], port: int, log: Path) -> None:
    deadline = time.perf_counter() + START_TIMEOUT_S
    while time.perf_counter() < deadline:
        if not is_running():
            break
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.002)
    raise RuntimeError(f"the server does not listen on {port}:\n{log.read_text()[-2_000:]}")


def run_client(
    shape: str,
    case: Case,
    peer_name: str,
    directory: Path,
    beside: Callable[[Job], AbstractContextManager[None]] | None = None,
) -> Figures:
    """Serve ``peer_name``, and let a client process do the work of ``shape``. Return its figures,
    and the bytes that the server has left on disk. ``beside`` is a context that runs other
    processes."""
    peer = peers()[peer_name]
    if reason := peer.missing():
        raise Missing(reason)
    stored = directory / "stored"
    stored.mkdir()
    with peer.serve(stored, case.durability) as server:
        job = Job(shape, peer_name, case, server=server)
        with nullcontext() if beside is None else beside(job):
            figures = client_figures(job)
    if "events" in figures:
        figures["disk_bytes_per_event"] = bytes_below(stored) / figures["events"]
    return figures


def client_figures(job: Job) -> Figures:
    """Let a client process do the work of a shape, with the window of its case. Return its
    figures."""
    window = job.case.parameters.get("window", EQUAL_WINDOW)
    return figures_of([sys.executable, "-m", "bench.client"], job, {WINDOW_IN: str(window)})


def figures_of(
    command: Sequence[str], job: msgspec.Struct | None = None, more: Mapping[str, str] | None = None
) -> Figures:
    """Run a process that prints its figures as JSON on a line, and return these."""
    return printed_by(command, Figures, job, more=more)


def printed_by(
    command: Sequence[str],
    kind: type[T],
    job: msgspec.Struct | None = None,
    more: Mapping[str, str] | None = None,
) -> T:
    """Run a process, and return the value that it prints as JSON on its last line."""
    done = subprocess.run(
        [*command, *([] if job is None else [msgspec.json.encode(job).decode()])],
        env=environment() | dict(more or {}),
        capture_output=True,
        text=True,
        timeout=run_timeout_s(),
        check=False,
    )
    if done.returncode == LACKS:
        raise Missing(done.stderr.strip().rpartition("\n")[2])
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed:\n{done.stderr[-4_000:]}")
    printed = next(line for line in reversed(done.stdout.splitlines()) if line.startswith("{"))
    return msgspec.json.decode(printed, type=kind)


def environment() -> dict[str, str]:
    """Return the environment of started processes. Penstock and the benchmarks come first in it,
    and Python may store compiled code: an installed package is compiled, as those of the peers are,
    but each process would compile a checkout that may not store it."""
    python_path = os.environ.get("PYTHONPATH")
    paths = (*map(str, _measured.get()), str(ROOT), python_path)
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    variables.pop("PYTHONDONTWRITEBYTECODE", None)
    return variables


def bytes_below(directory: Path) -> int:
    """Return the bytes of all files below ``directory``."""
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())

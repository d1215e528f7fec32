"""A PostgreSQL primary with two synchronous standbys on loopback, for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from penstock_testing.ports import free_ports

ROLE = "postgres"
"""The user that runs the servers if the tests run as root, because PostgreSQL refuses root."""
QUORUM = "ANY 1 (s0, s1, s2)"
SETTINGS = {
    "listen_addresses": "127.0.0.1",
    "unix_socket_directories": "",
    "shared_buffers": "32MB",
    "wal_sender_timeout": "3s",
    "wal_receiver_timeout": "3s",
    "wal_retrieve_retry_interval": "200ms",
    "wal_keep_size": "64MB",
    "hot_standby": "on",
}
READS_NOTHING = """
DO $$ BEGIN WHILE EXISTS (SELECT FROM pg_stat_wal_receiver WHERE status = 'streaming')
LOOP PERFORM pg_sleep(0.02); PERFORM pg_stat_clear_snapshot(); END LOOP; END $$
"""
"""SQL that waits until a standby has no connection to a primary."""
WAIT_S = 120.0
ORPHANS_SEEN_EVERY_S = 0.05
MEMORY = Path("/dev/shm")
"""A folder in memory. Tests kill processes but do not cut the power, so files in memory survive as
those on a disk do, and are faster by seconds."""
ROOM = 1 << 30


def program(name: str) -> str | None:
    """Return the path of a program of PostgreSQL, in Debian's folder or on PATH."""
    every = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(every[-1]) if every else shutil.which(name)


def missing() -> str:
    """Return the reason why no server can be started here; empty if one can."""
    if program("postgres") is None or program("pg_basebackup") is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0 and not any(user.pw_name == ROLE for user in pwd.getpwall()):
        return f"PostgreSQL does not run as root, and there is no user {ROLE}"
    return ""


def made_folder(*, in_memory: bool = True) -> Path:
    """Make a temporary folder for servers: with ``in_memory`` in memory if there is room, otherwise
    on a disk."""
    is_roomy = in_memory and os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=MEMORY if is_roomy else None))


def engine_at(ports: Sequence[int]) -> str:
    """Return the argument of ``penstock serve --cluster`` for servers at these ports."""
    hosts = ",".join(f"127.0.0.1:{port}" for port in ports)
    return f"postgresql://{ROLE}@{hosts}/postgres"


class PostgresServers:
    """A primary, at first server 0, and its standbys. Only server 0 gets ``settings``."""

    def __init__(
        self,
        *,
        standbys: int = 2,
        settings: Mapping[str, str] | None = None,
        in_memory: bool = True,
        between: Callable[[int, int, int], int] | None = None,
    ) -> None:
        """``in_memory``: store files in memory if there is room. ``between(server, peer, port)``
        returns the port at which ``server`` reaches ``peer``, which listens on ``port``; by default
        ``port``."""
        self._settings = {"synchronous_standby_names": QUORUM, **(settings or {})}
        self._standbys = standbys
        self._between = between
        self.primary = 0
        """Number of the server that accepts writes, or was the last to do so."""
        self._folder = made_folder(in_memory=in_memory)
        self._user = ROLE if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        self._ports = free_ports(1 + standbys)
        self._running: dict[int, subprocess.Popen[bytes]] = {}
        self._orphans: dict[int, list[int]] = {}
        """The processes that the killed first process of each server has left behind."""

    @property
    def urls(self) -> list[str]:
        return [f"postgresql://{ROLE}@127.0.0.1:{port}/postgres" for port in self._ports]

    @property
    def ports(self) -> Sequence[int]:
        """Ports of the servers, in the order of their numbers."""
        return tuple(self._ports)

    @property
    def engine(self) -> str:
        """The argument of ``penstock serve --cluster`` for these servers."""
        return engine_at(self._ports)

    def __enter__(self) -> PostgresServers:
        try:
            self._begin()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _begin(self) -> None:
        primary = self._data(0)
        self._run("initdb", "-D", primary, "-U", ROLE, "-A", "trust", "-k", "-N")
        with (primary / "pg_hba.conf").open("a") as rules:
            rules.write("host replication all 127.0.0.1/32 trust\n")
        self.start(0, **self._settings)
        for number in range(1, 1 + self._standbys):
            self._copy(number)
            self.start(number, synchronous_standby_names=QUORUM)
        if self._standbys:
            self.wait_for_standbys(self._standbys)

    def _copy(self, number: int) -> None:
        """Copy the primary's files for a standby."""
        folder = self._data(number)
        source = f"postgresql://{ROLE}@127.0.0.1:{self._ports[self.primary]}/"
        self._run("pg_basebackup", "-D", folder, "-d", source, "-R", "-c", "fast", "-N")
        with (folder / "postgresql.auto.conf").open("a") as settings:
            settings.write(f"primary_conninfo = '{self._source_of(number)}'\n")

    def _source_of(self, number: int) -> str:
        """Return the connection string with which a standby reaches the primary."""
        port = self._ports[self.primary]
        if self._between is not None:
            port = self._between(number, self.primary, port)
        return f"host=127.0.0.1 port={port} user={ROLE} application_name=s{number}"

    def start(self, number: int, **settings: str) -> None:
        """Start a server, and wait until it accepts connections. It cannot start while processes of
        its former run hold shared memory."""
        self._wait_for_orphans(number)
        command = [
            _path_of("postgres"),
            "-D",
            str(self._data(number)),
            "-p",
            f"{self._ports[number]}",
        ]
        for name, value in {**SETTINGS, **settings}.items():
            command += ["-c", f"{name}={value}"]
        with (self._folder / f"log{number}").open("ab") as log:
            self._running[number] = subprocess.Popen(
                command,
                user=self._user,
                cwd=self._folder,
                stdout=subprocess.DEVNULL,
                stderr=log,
            )
        ready = [_path_of("pg_isready"), "-q", "-h", "127.0.0.1", "-p", f"{self._ports[number]}"]
        while subprocess.run([*ready, "-t", "1"], check=False).returncode:
            if self._running[number].poll() is not None:
                raise RuntimeError((self._folder / f"log{number}").read_text()[-2000:])

    def address(self, number: int) -> str:
        """Host and port of a server."""
        return f"127.0.0.1:{self._ports[number]}"

    def wait_for_standbys(self, count: int) -> None:
        """Wait until this many standbys follow the primary. Raises ``TimeoutExpired``."""
        wanted = (
            "DO $$ BEGIN WHILE (SELECT count(*) FROM pg_stat_replication"
            f" WHERE sync_state = 'quorum' AND state = 'streaming') < {count}"
            " LOOP PERFORM pg_sleep(0.05); PERFORM pg_stat_clear_snapshot(); END LOOP; END $$"
        )
        self.sql(self.primary, wanted)

    def sql(self, number: int, statement: str) -> str:
        """Run a statement with psql; return its output."""
        command = [_path_of("psql"), "-XtA", "-d", self.urls[number], "-c", statement]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
        return done.stdout.strip()

    def promote(self, number: int) -> None:
        """Promote a standby to primary; the other standby follows it."""
        self._run("pg_ctl", "promote", "-w", "-D", self._data(number))
        former, self.primary = self.primary, number
        for server in self._running:
            if server not in (former, number):
                where = self._source_of(server)
                self.sql(server, f"ALTER SYSTEM SET primary_conninfo = '{where}'")
                self.sql(server, "SELECT pg_reload_conf()")

    def farthest_standby(self) -> int:
        """Return the standby that has received the most from the killed primary. Only this one may
        be promoted, because a commit waits for just one standby."""
        standbys = [number for number in self._running if number != self.primary]
        for number in standbys:  # so that data under way to a standby counts, too
            self.sql(number, READS_NOTHING)
        written = "SELECT pg_last_wal_receive_lsn() - '0/0'::pg_lsn"
        return max(standbys, key=lambda number: int(self.sql(number, written)))

    def rejoin(self, number: int) -> None:
        """Make a stopped server a standby, with a new copy of the primary's files."""
        shutil.rmtree(self._data(number))
        self._copy(number)
        self.start(number, synchronous_standby_names=QUORUM)

    def signal(self, number: int, sent: signal.Signals) -> None:
        """Send a signal to a server's first process; SIGQUIT ends the whole server as a crash
        does."""
        self._running[number].send_signal(sent)

    def freeze(self, number: int) -> None:
        """Stop all processes of a server with SIGSTOP: the first one first, so that it starts no
        others."""
        self.signal(number, signal.SIGSTOP)
        for process in children_of(self._running[number].pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGSTOP)

    def thaw(self, number: int) -> None:
        """Continue all processes of a frozen server."""
        for process in children_of(self._running[number].pid):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGCONT)
        self.signal(number, signal.SIGCONT)

    def kill(self, number: int) -> None:
        """Kill all processes of a server at once."""
        self.signal(number, signal.SIGQUIT)
        self._running.pop(number).wait(WAIT_S)

    def kill_first_process(self, number: int) -> None:
        """Send SIGKILL only to a server's first process, as the kernel does when memory is short.
        The other processes notice, and end a moment later."""
        process = self._running.pop(number)
        self._orphans[number] = children_of(process.pid)
        process.kill()
        process.wait(WAIT_S)

    def _wait_for_orphans(self, number: int) -> None:
        pause = threading.Event()
        orphans = self._orphans.pop(number, [])
        for _ in range(int(WAIT_S / ORPHANS_SEEN_EVERY_S)):
            if not any(is_alive(pid) for pid in orphans):
                return
            pause.wait(ORPHANS_SEEN_EVERY_S)
        raise RuntimeError(f"processes of server {number} do not end: {orphans}")

    def close(self) -> None:
        """End every server, and remove its files."""
        for number, process in self._running.items():
            self.thaw(number)
            process.send_signal(signal.SIGQUIT)
        for process in self._running.values():
            process.wait(WAIT_S)
        self._running.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _data(self, number: int) -> Path:
        return self._folder / f"data{number}"

    def _run(self, name: str, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [_path_of(name), *arguments]
        done = subprocess.run(
            command,
            user=self._user,
            cwd=self._folder,
            capture_output=True,
            text=True,
            check=False,
            env={"PATH": os.environ["PATH"], "LC_ALL": "C"},
        )
        if done.returncode:
            raise RuntimeError(f"{name}: {done.stderr}")


def children_of(pid: int) -> list[int]:
    """Return the running child processes of a process."""
    pids = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # the process has ended meanwhile
            if int(file.read_text().rpartition(")")[2].split()[1]) == pid:
                pids.append(int(file.parent.name))
    return pids


def is_alive(pid: int) -> bool:
    """Whether a process runs. One that has ended, but whose parent has not noticed yet, does
    not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _path_of(name: str) -> str:
    path = program(name)
    assert path is not None, f"{name} is not installed"
    return path

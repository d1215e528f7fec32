"""A PostgreSQL primary with two synchronous standbys on loopback, for tests."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from penstock.testing.nats_servers import free_ports

ROLE = "postgres"
"""The user that the servers run as where the tests run as root: PostgreSQL refuses to."""
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
WAIT_S = 120.0
MEMORY = Path("/dev/shm")
"""Where files are in memory. Tests end processes, not the power: such files outlive a server as
those on a disk do, and to put a whole server on a disk takes seconds."""
ROOM = 1 << 30


def program(name: str) -> str | None:
    """Where a program of PostgreSQL is: where Debian puts it, or on PATH."""
    every = sorted(Path("/usr/lib/postgresql").glob(f"*/bin/{name}"))
    return str(every[-1]) if every else shutil.which(name)


def missing() -> str:
    """Why no server can be started here, or nothing."""
    if program("postgres") is None or program("pg_basebackup") is None:
        return "PostgreSQL is not installed: apt-get install postgresql"
    if os.geteuid() == 0 and not any(user.pw_name == ROLE for user in pwd.getpwall()):
        return f"PostgreSQL does not run as root, and there is no user {ROLE}"
    return ""


def made_folder() -> Path:
    """A folder of its own for servers: in memory where there is room."""
    is_roomy = os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free > ROOM
    return Path(tempfile.mkdtemp(prefix="penstock-pg-", dir=MEMORY if is_roomy else None))


class PostgresServers:
    """Server 0 is the primary at first; ``settings`` are given to it alone."""

    def __init__(self, *, standbys: int = 2, settings: dict[str, str] | None = None) -> None:
        self._settings = {"synchronous_standby_names": QUORUM, **(settings or {})}
        self._standbys = standbys
        self._folder = made_folder()
        self._user = ROLE if os.geteuid() == 0 else None
        if self._user:
            shutil.chown(self._folder, self._user)
        self._ports = free_ports(1 + standbys)
        self._running: dict[int, subprocess.Popen[bytes]] = {}

    @property
    def urls(self) -> list[str]:
        return [f"postgresql://{ROLE}@127.0.0.1:{port}/postgres" for port in self._ports]

    @property
    def engine(self) -> str:
        """What ``penstock serve --cluster`` takes."""
        hosts = ",".join(f"127.0.0.1:{port}" for port in self._ports)
        return f"postgresql://{ROLE}@{hosts}/postgres"

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
            source = f"postgresql://{ROLE}@127.0.0.1:{self._ports[0]}/"
            folder = self._data(number)
            self._run("pg_basebackup", "-D", folder, "-d", source, "-R", "-c", "fast", "-N")
            with (folder / "postgresql.auto.conf").open("a") as settings:
                where = f"host=127.0.0.1 port={self._ports[0]} user={ROLE}"
                settings.write(f"primary_conninfo = '{where} application_name=s{number}'\n")
            self.start(number, synchronous_standby_names=QUORUM)
        if self._standbys:
            self.wait_for_standbys(self._standbys)

    def start(self, number: int, **settings: str) -> None:
        """Start a server, and wait until it takes connections."""
        command = [
            _found("postgres"),
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
        ready = [_found("pg_isready"), "-q", "-h", "127.0.0.1", "-p", f"{self._ports[number]}"]
        while subprocess.run([*ready, "-t", "1"], check=False).returncode:
            if self._running[number].poll() is not None:
                raise RuntimeError((self._folder / f"log{number}").read_text()[-2000:])

    def address(self, number: int) -> str:
        """Host and port of a server."""
        return f"127.0.0.1:{self._ports[number]}"

    def wait_for_standbys(self, count: int) -> None:
        """Wait until so many standbys follow the primary."""
        wanted = (
            "DO $$ BEGIN WHILE (SELECT count(*) FROM pg_stat_replication"
            f" WHERE sync_state = 'quorum' AND state = 'streaming') < {count}"
            " LOOP PERFORM pg_sleep(0.05); PERFORM pg_stat_clear_snapshot(); END LOOP; END $$"
        )
        self.sql(0, wanted)

    def sql(self, number: int, statement: str) -> str:
        """What psql prints for a statement."""
        command = [_found("psql"), "-XtA", "-d", self.urls[number], "-c", statement]
        done = subprocess.run(command, check=True, capture_output=True, text=True, timeout=WAIT_S)
        return done.stdout.strip()

    def promote(self, number: int) -> None:
        """Make a standby the primary; the other standby follows it."""
        self._run("pg_ctl", "promote", "-w", "-D", self._data(number))
        for other in self._running:
            if other not in (0, number):
                where = f"host=127.0.0.1 port={self._ports[number]} user={ROLE}"
                self.sql(
                    other,
                    f"ALTER SYSTEM SET primary_conninfo = '{where} application_name=s{other}'",
                )
                self.sql(other, "SELECT pg_reload_conf()")

    def signal(self, number: int, sent: signal.Signals) -> None:
        """Send a signal to a server: SIGQUIT ends it as a crash does."""
        self._running[number].send_signal(sent)

    def kill(self, number: int) -> None:
        """End a server without letting it finish anything."""
        self.signal(number, signal.SIGQUIT)
        self._running.pop(number).wait(WAIT_S)

    def close(self) -> None:
        """End every server, and remove its files."""
        for process in self._running.values():
            process.send_signal(signal.SIGCONT)
            process.send_signal(signal.SIGQUIT)
        for process in self._running.values():
            process.wait(WAIT_S)
        self._running.clear()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _data(self, number: int) -> Path:
        return self._folder / f"data{number}"

    def _run(self, name: str, *arguments: str | Path) -> None:
        command: Sequence[str | Path] = [_found(name), *arguments]
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


def _found(name: str) -> str:
    found = program(name)
    assert found is not None, f"{name} is not installed"
    return found

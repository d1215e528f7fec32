"""A realm in a separate process under requests with extreme values, in every protocol and for any
time.

The process must survive, its memory must stay below a bound, its log must have no faults, and pings
of an administrator must take less than a bound of the server's processor time. ``drawing.py`` makes
the requests. In a guided run the server counts its branches, and requests that reach new ones are
changed further.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import time
from collections import deque
from collections.abc import Callable
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

import penstock
from penstock_core.api.realm import DescribeRealm
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import FrameReader, frame
from penstock_testing.process import ServerProcess
from tests.fuzz import covered, extremes, mqtt_extremes
from tests.fuzz.covered import BranchCount
from tests.fuzz.drawing import Drawn, Guided, decode_requests, drawn, encode_requests
from tests.fuzz.http import request, setup_requests
from tests.fuzz.pinging import Pinging, cpu_s, memory_of

NAME: Final = "served"
SETUP_EVERY: Final = 200
"""Number of requests after which the objects are created again: requests may delete them, or pause
publishing."""
CHECK_EVERY: Final = 20
"""Number of requests between two checks of the log."""
PATIENCE_S: Final = 2.0
"""A client disconnects if it has no answer by then."""
IDLE_S: Final = 0.05
"""A client disconnects earlier if the server has been idle for this long: it waits for more
bytes."""
IDLE_CPU_S: Final = 0.005
"""Processor time that an idle server uses for pings meanwhile."""
STORED_BYTES_MAX = 256 << 20
"""Bytes of the data folder above which the stores are emptied when the objects are created again.
Redrives over joins multiply events, and the bound on memory is for requests: stored events cost
about 1 % of their size in memory."""
REPEATED_BYTES: Final = 32 << 20
"""Bytes of the last requests that are kept in a file when the realm breaks."""
REPORTED_EVERY_S: Final = 60.0
READ_BYTES: Final = 1 << 16
LIMITS: Final = {
    "PENSTOCK_LIMITS_MEMORY_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_OFF_HEAP_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_PAGED_BYTES": str(64 << 20),
    "PENSTOCK_LIMITS_STAGE_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_UNSEALED_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_MQTT_SESSION_BYTES_PER_USER_MAX": str(8 << 20),
    "PENSTOCK_LIMITS_CHANNELS_MAX": "500",
    "PENSTOCK_LIMITS_DURABLES_PER_CHANNEL_MAX": "100",
    "PENSTOCK_ACCESS_PASSWORD_ROUNDS": "4096",
}
"""Small limits, because stored events count as memory of the realm."""
FAULTS: Final = frozenset(("error", "critical"))


_LAST: Final = b"".join(map(bytes, frame(wire.encode(wire.Asked(extremes.LATER, DescribeRealm())))))


class Broken(AssertionError):
    """A failure of a realm under attack."""


class Attacked:
    """The realm and its figures: memory, log, pings, branches."""

    def __init__(
        self, memory_bytes: int, ping_s_max: float = 0.0, *, is_guided: bool = False
    ) -> None:
        """``memory_bytes``: the most private memory of the process. ``ping_s_max``: the most
        processor time of a ping (0: no pings). ``is_guided``: the server counts its branches."""
        self._memory_bytes_max = memory_bytes
        self._ping_s_max = ping_s_max
        self._is_guided = is_guided
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-fuzz-")
        self.server = self._make_server(Path(self._folder.name))
        self._ends = contextlib.ExitStack()
        self._checked_lines = 0
        self.memory_bytes = 0
        """Most private memory of the process, by :meth:`_measure`."""
        self.resident_bytes = 0
        """Most resident memory of the process, including the pages of mapped files."""
        self._pinging: Pinging | None = None
        self.branches = 0
        """Number of branches of the packages, in a guided run."""
        self._branch_count: BranchCount | None = None

    def _make_server(self, folder: Path) -> ServerProcess:
        is_amqp_installed = find_spec("proton") is not None
        copy, branches = folder / "copy", folder / "branches"
        own_environment = (
            {"PYTHONPATH": str(copy), covered.SOCKET: str(branches)} if self._is_guided else {}
        )
        return ServerProcess(
            folder / "data",
            "--http",
            "--http-port",
            "0",
            "--mqtt-port",
            "0",
            *(("--amqp-port", "0") if is_amqp_installed else ()),
            environment={**LIMITS, **own_environment},
            program=("-m", "tests.fuzz.covered" if self._is_guided else "penstock"),
        )

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            ends.callback(self._folder.cleanup)
            folder = Path(self._folder.name)
            if self._is_guided:
                self.branches = covered.make_covered_copy(folder / "copy")
            _make_channels(folder / "data")
            ends.enter_context(self.server)
            if self._is_guided:
                self._branch_count = BranchCount(folder / "branches")
                ends.callback(self._branch_count.close)
            self.set_up()
            if self._ping_s_max:
                self._pinging = Pinging(self.server.port, self.server.pid)
                ends.enter_context(self._pinging)
            self._ends = ends.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._ends.close()

    # --- requests -----------------------------------------------------------------------

    def set_up(self) -> None:
        """Create the objects of the requests again, as far as they are missing."""
        self.send(Drawn("furniture", "http", request("PATCH realm", b'{"paused": false}')))
        for conversation in extremes.setup_conversations():
            self.send(Drawn("furniture", "native", conversation + _LAST))
        for conversation in setup_requests():
            self.send(Drawn("furniture", "http", conversation))
        if self._stored_bytes() > STORED_BYTES_MAX:
            self._empty_stores()

    def _stored_bytes(self) -> int:
        """Return the size of the data folder in bytes."""
        stored_bytes = 0
        for path in (Path(self._folder.name) / "data").rglob("*"):
            with contextlib.suppress(FileNotFoundError):  # the realm has just deleted the file
                stored_bytes += path.stat().st_size
        return stored_bytes

    def _empty_stores(self) -> None:
        """Purge all channels and queues, as far as the requests have left the right to do so."""
        with (
            contextlib.suppress(penstock.PenstockError),
            penstock.connect(self.server.url) as session,
        ):
            for name in session.channels.list():
                session.channels.get(name).purge()
            for name in session.queues.list():
                session.queues.get(name).purge()

    def send(self, request: Drawn) -> None:
        """Send a request on a new connection, and wait for its answer."""
        is_answered = _IS_ANSWERED[request.protocol]
        end_s = time.perf_counter() + PATIENCE_S
        with (
            contextlib.suppress(OSError),  # the server has closed the connection, or is slow
            socket.create_connection(("127.0.0.1", self._ports[request.protocol])) as connection,
        ):
            connection.settimeout(PATIENCE_S)
            connection.sendall(request.data)
            connection.settimeout(IDLE_S)
            answer = b""
            while not is_answered(answer) and time.perf_counter() < end_s:
                used_s = cpu_s(self.server.pid)
                try:
                    received = connection.recv(READ_BYTES)
                except TimeoutError:
                    if cpu_s(self.server.pid) - used_s < IDLE_CPU_S:
                        break
                    continue
                if not received:
                    break
                answer += received

    @cached_property
    def _ports(self) -> dict[str, int]:
        urls = {"http": self.server.http_url, "mqtt": self.server.mqtt_url}
        if find_spec("proton"):
            urls["amqp"] = str(self.server.logged("amqp.listening")[0]["url"])
        ports = {name: int(url.rpartition(":")[2].strip("/")) for name, url in urls.items()}
        return {**ports, "native": self.server.port}

    # --- checks -------------------------------------------------------------------------

    def _measure(self) -> None:
        measured = [memory_of(self.server.pid)]
        if self._pinging is not None:
            measured.append(self._pinging.memory)
        self.memory_bytes = max(
            self.memory_bytes, *(private_bytes for private_bytes, _ in measured)
        )
        self.resident_bytes = max(self.resident_bytes, *(resident for _, resident in measured))

    @property
    def slowest_s(self) -> float:
        """Most processor time of a ping so far, in seconds."""
        return 0.0 if self._pinging is None else self._pinging.slowest_s

    @property
    def pings(self) -> int:
        return 0 if self._pinging is None else self._pinging.pings

    @property
    def reached(self) -> int:
        """Branches reached so far; 0 unless the run is guided."""
        return 0 if self._branch_count is None else self._branch_count.read()

    def check(self) -> None:
        """Raise :class:`Broken` if the process has ended, its log has a fault, or memory or a ping
        exceeds its bound."""
        self.check_figures()
        lines = self.server.lines[self._checked_lines :]
        self._checked_lines += len(lines)
        for line in lines:
            with contextlib.suppress(json.JSONDecodeError):
                if json.loads(line).get("level") in FAULTS:
                    raise Broken(f"the realm logged a fault: {line}")

    def check_figures(self) -> None:
        """Raise :class:`Broken` as :meth:`check` does, but do not read the log."""
        if not self.server.is_running:
            raise Broken(f"the process has ended:\n{self.server.log[-4_000:]}")
        self._measure()
        if (memory := self.memory_bytes) > self._memory_bytes_max:
            allowed = f"{self._memory_bytes_max >> 20} MiB are allowed"
            raise Broken(f"the process has had {memory >> 20} MiB of memory; {allowed}")
        if self._pinging is not None and self._pinging.is_unanswered:
            raise Broken("an administrator is not answered any more")
        if self._ping_s_max and self.slowest_s > self._ping_s_max:
            spent = f"{self.slowest_s * 1e3:.0f} ms of processor time"
            raise Broken(f"a ping took {spent}; {self._ping_s_max * 1e3:.0f} ms are allowed")

    def check_another_client(self) -> None:
        """Raise :class:`Broken` if another client cannot work."""
        try:
            with penstock.connect(self.server.url) as session:
                channel = session.channels.create("own/of-somebody-else")
                channel.publish(b"x")
                with channel.subscribe(start="earliest", timeout=30) as subscription:
                    batch = subscription.next_batch()
                session.channels.delete("own/of-somebody-else")
        except penstock.PenstockError as error:
            raise Broken(f"another client cannot work: {error}") from error
        if batch is None or [event.data for event in batch] != [b"x"]:
            raise Broken("another client does not get what it has published")


def _make_channels(data: Path) -> None:
    """Create the channels of the requests before those of MQTT, because requests use their
    numbers."""
    with penstock.Realm(data) as realm, realm.connect() as session:
        session.channels.create("orders", keys={"n": 20})
        session.queues.create("q")


def is_answered(answer: bytes) -> bool:
    """Return whether an HTTP answer is complete, or is a stream."""
    head, gap, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(body) >= int(value)
    return bool(gap)


def has_worked(answer: bytes) -> bool:
    """Return whether a native conversation was answered up to the request after the extreme one."""
    reader = FrameReader()
    reader.receive(answer)
    for header, _ in reader.frames():
        message = wire.decode_from_server(header)
        if isinstance(message, wire.Done | wire.Failed) and message.request == extremes.LATER:
            return True
    return False


def is_pinged(answer: bytes) -> bool:
    """Return whether an MQTT conversation was answered up to the ping at its end."""
    return answer.endswith(mqtt_extremes.PONG)


_IS_ANSWERED: Final[dict[str, Callable[[bytes], bool]]] = {
    "native": has_worked,
    "http": is_answered,
    "mqtt": is_pinged,
    "amqp": lambda answer: False,  # the server closes the connection
}


# --- the run -----------------------------------------------------------------------------


class LastRequests:
    """The last requests, up to ``REPEATED_BYTES``."""

    def __init__(self) -> None:
        self._requests: deque[Drawn] = deque()
        self._bytes = 0

    @property
    def requests(self) -> list[Drawn]:
        return list(self._requests)

    def add(self, request: Drawn) -> None:
        self._requests.append(request)
        self._bytes += len(request.data)
        while self._bytes > REPEATED_BYTES:
            self._bytes -= len(self._requests.popleft().data)


class Outcome(NamedTuple):
    done: int
    broken: str
    """The failure and how to repeat it; empty if the realm did not break."""
    slowest_s: float
    """Most processor time of a ping, in seconds."""
    pings: int
    memory_bytes: int
    """Most private memory of the process."""
    resident_bytes: int
    """Most resident memory, including the pages of mapped files."""
    reached: int
    """Branches reached, of ``branches``; 0 unless the run was guided."""
    branches: int
    kept: int
    """Number of inputs in the corpus."""


def attack(
    seed: int,
    *,
    seconds: float = 0.0,
    examples: int = 0,
    memory_bytes: int,
    ping_s_max: float = 0.0,
    corpus: Path | None = None,
    report: Callable[[Outcome], None] = lambda _: None,
) -> Outcome:
    """Send requests for a time, or a number of requests, or until the realm breaks. ``corpus``
    makes the run guided; its inputs are kept there. ``report`` is called every minute."""
    last = LastRequests()
    done, broken, reached = 0, "", 0
    guided = None if corpus is None else Guided(seed, corpus)
    with Attacked(memory_bytes, ping_s_max, is_guided=guided is not None) as realm:

        def outcome() -> Outcome:
            kept = 0 if guided is None else guided.kept
            return Outcome(
                done,
                broken,
                slowest_s=realm.slowest_s,
                pings=realm.pings,
                memory_bytes=realm.memory_bytes,
                resident_bytes=realm.resident_bytes,
                reached=reached,
                branches=realm.branches,
                kept=kept,
            )

        begun_s = reported_s = time.perf_counter()
        reached = realm.reached
        try:
            for request in drawn(seed) if guided is None else guided:
                now_s = time.perf_counter()
                if done >= examples if examples else now_s - begun_s >= seconds:
                    break
                last.add(request)
                realm.send(request)
                done += 1
                if guided is not None and (count := realm.reached) > reached:
                    guided.keep(request)
                    reached = count
                if done % SETUP_EVERY == 0:
                    realm.set_up()
                realm.check() if done % CHECK_EVERY == 0 else realm.check_figures()
                if now_s - reported_s >= REPORTED_EVERY_S:
                    report(outcome())
                    reported_s = now_s
            realm.check()
            realm.set_up()
            realm.check_another_client()
        except (Broken, OSError) as error:  # OSError: the covered server has ended
            repeating = _how_to_repeat(seed, done, last.requests, is_guided=guided is not None)
            broken = f"{error}\n{repeating}"
        return outcome()


def _how_to_repeat(seed: int, done: int, last: list[Drawn], *, is_guided: bool) -> str:
    """Return the options that repeat all requests, or only the last ones; a guided run depends on
    more than its seed."""
    path = Path(tempfile.gettempdir()) / f"penstock-fuzz-{seed}-{done}"
    path.write_bytes(encode_requests(last))
    shown = [f"the last of {done} requests: {last[-1].protocol} {last[-1].what}"] if last else []
    if not is_guided:
        shown.append(f"  --only {NAME} --seed {seed} --examples {done}")
    return "\n".join([*shown, f"  --only {NAME} --input-file {path}"])


def replay(content: bytes, memory_bytes: int) -> None:
    """Send the requests of a file. Raises :class:`Broken`."""
    with Attacked(memory_bytes) as realm:
        for request in decode_requests(content):
            realm.send(request)
            realm.check()
        realm.set_up()  # a request may have paused publishing
        realm.check_another_client()

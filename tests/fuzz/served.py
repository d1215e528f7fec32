"""A realm in a process of its own under requests of extreme values, in every protocol and for as
long as wanted.

The process has to live, its memory to stay below a bound, its log to be without a fault, and the
pings of an administrator to take less than a bound of the server's processor time. ``drawing.py``
makes the requests. In a guided run the server counts the branches it reaches, and requests that
reach new ones are changed further.
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
from tests.fuzz.drawing import Drawn, Guided, decoded, drawn, encoded
from tests.fuzz.http import furniture, request
from tests.fuzz.pinging import Pinging, cpu_s, memory_of

NAME: Final = "served"
FURNISHED_EVERY: Final = 200
"""Requests may delete what the next ones are about, or pause publishing."""
LOOKED_EVERY: Final = 20
"""Requests between two looks at the log."""
PATIENCE_S: Final = 2.0
"""A client hangs up if it has no answer by then."""
IDLE_S: Final = 0.05
"""A client hangs up earlier if the server does not work for so long: it waits for more bytes."""
IDLE_CPU_S: Final = 0.005
"""Processor time that an idle server uses for pings meanwhile."""
REPEATED_BYTES: Final = 32 << 20
"""Bytes of the last requests that are kept in a file when something breaks."""
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
"""What a realm may keep counts as its memory, so this one keeps little."""
FAULTS: Final = frozenset(("error", "critical"))


_LAST: Final = b"".join(map(bytes, frame(wire.encode(wire.Asked(extremes.LATER, DescribeRealm())))))


class Broken(AssertionError):
    """What a realm under attack must not come to."""


class Attacked:
    """The realm and its figures: memory, log, pings, branches."""

    def __init__(
        self, memory_bytes: int, ping_s_max: float = 0.0, *, is_guided: bool = False
    ) -> None:
        """``memory_bytes`` is the most memory of the process's own, ``ping_s_max`` the most
        processor time of a ping (0: no pings). ``is_guided``: the server counts its branches."""
        self._memory_bytes_max = memory_bytes
        self._ping_s_max = ping_s_max
        self._is_guided = is_guided
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-fuzz-")
        self.server = self._make_server(Path(self._folder.name))
        self._ends = contextlib.ExitStack()
        self._looked_at = 0
        self.memory_bytes = 0
        """Most memory that the process has had of its own, by :meth:`_measure`."""
        self.resident_bytes = 0
        """Most resident memory of the process, with the pages of mapped files."""
        self._pinging: Pinging | None = None
        self.branches = 0
        """Branches of the package, in a guided run."""
        self._branch_count: BranchCount | None = None

    def _make_server(self, folder: Path) -> ServerProcess:
        is_amqp_installed = find_spec("proton") is not None
        copy, branches = folder / "copy", folder / "branches"
        own = {"PYTHONPATH": str(copy), covered.SOCKET: str(branches)} if self._is_guided else {}
        return ServerProcess(
            folder / "data",
            "--http",
            "--http-port",
            "0",
            "--mqtt-port",
            "0",
            *(("--amqp-port", "0") if is_amqp_installed else ()),
            environment={**LIMITS, **own},
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
            self.furnish()
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

    # --- asking --------------------------------------------------------------------------

    def furnish(self) -> None:
        """What the requests are about, as far as it is gone."""
        self.ask(Drawn("furniture", "http", request("PATCH realm", b'{"paused": false}')))
        for said in extremes.furniture():
            self.ask(Drawn("furniture", "native", said + _LAST))
        for said in furniture():
            self.ask(Drawn("furniture", "http", said))

    def ask(self, request: Drawn) -> None:
        """Send a request on a connection of its own, and wait for its answer."""
        is_answered = _IS_ANSWERED[request.protocol]
        end_s = time.perf_counter() + PATIENCE_S
        with (
            contextlib.suppress(OSError),  # the server has hung up, or takes its time
            socket.create_connection(("127.0.0.1", self._ports[request.protocol])) as line,
        ):
            line.settimeout(PATIENCE_S)
            line.sendall(request.data)
            line.settimeout(IDLE_S)
            heard = b""
            while not is_answered(heard) and time.perf_counter() < end_s:
                used_s = cpu_s(self.server.pid)
                try:
                    part = line.recv(READ_BYTES)
                except TimeoutError:
                    if cpu_s(self.server.pid) - used_s < IDLE_CPU_S:
                        break
                    continue
                if not part:
                    break
                heard += part

    @cached_property
    def _ports(self) -> dict[str, int]:
        urls = {"http": self.server.http_url, "mqtt": self.server.mqtt_url}
        if find_spec("proton"):
            urls["amqp"] = str(self.server.logged("amqp.listening")[0]["url"])
        ports = {name: int(url.rpartition(":")[2].strip("/")) for name, url in urls.items()}
        return {**ports, "native": self.server.port}

    # --- looking -------------------------------------------------------------------------

    def _measure(self) -> None:
        measured = [memory_of(self.server.pid)]
        if self._pinging is not None:
            measured.append(self._pinging.memory)
        self.memory_bytes = max(self.memory_bytes, *(own for own, _ in measured))
        self.resident_bytes = max(self.resident_bytes, *(resident for _, resident in measured))

    @property
    def slowest_s(self) -> float:
        """Most processor time of a ping so far."""
        return 0.0 if self._pinging is None else self._pinging.slowest_s

    @property
    def pings(self) -> int:
        return 0 if self._pinging is None else self._pinging.pings

    @property
    def reached(self) -> int:
        """Branches reached so far; 0 unless the run is guided."""
        return 0 if self._branch_count is None else self._branch_count.read()

    def check(self) -> None:
        """Raise :class:`Broken` for a process that has ended, a fault in its log, too much memory
        or a ping that took too long."""
        self.check_figures()
        lines = self.server.lines[self._looked_at :]
        self._looked_at += len(lines)
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

    def works(self) -> None:
        """Raise :class:`Broken` if another client cannot work."""
        try:
            with penstock.connect(self.server.url) as session:
                own = session.channels.create("own/of-somebody-else")
                own.publish(b"x")
                with own.subscribe(start="earliest", timeout=30) as subscription:
                    batch = subscription.next_batch()
                session.channels.delete("own/of-somebody-else")
        except penstock.PenstockError as error:
            raise Broken(f"another client cannot work: {error}") from error
        if batch is None or [event.data for event in batch] != [b"x"]:
            raise Broken("another client does not get what it has published")


def _make_channels(data: Path) -> None:
    """Make the channels of the requests before those of MQTT: requests go by their numbers."""
    with penstock.Realm(data) as realm, realm.connect() as session:
        session.channels.create("orders", keys={"n": 20})
        session.queues.create("q")


def is_answered(heard: bytes) -> bool:
    """Whether an answer over HTTP is whole, or has no end."""
    head, gap, body = heard.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        name, _, value = line.partition(b":")
        if name == b"content-length":
            return len(body) >= int(value)
    return bool(gap)


def has_worked(heard: bytes) -> bool:
    """Whether a native conversation has been answered up to what follows its request."""
    reader = FrameReader()
    reader.receive(heard)
    for header, _ in reader.frames():
        found = wire.decode_from_server(header)
        if isinstance(found, wire.Done | wire.Failed) and found.request == extremes.LATER:
            return True
    return False


def is_pinged(heard: bytes) -> bool:
    """Whether a conversation of MQTT was answered up to the ping at its end."""
    return heard.endswith(mqtt_extremes.PONG)


_IS_ANSWERED: Final[dict[str, Callable[[bytes], bool]]] = {
    "native": has_worked,
    "http": is_answered,
    "mqtt": is_pinged,
    "amqp": lambda heard: False,  # the server hangs up
}


# --- the run -----------------------------------------------------------------------------


class LastRequests:
    """The last requests, as many as ``REPEATED_BYTES`` have room for."""

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
    """What broke, and how to repeat it; empty if nothing did."""
    slowest_s: float
    """Most processor time of a ping."""
    pings: int
    memory_bytes: int
    """Most memory of the process's own."""
    resident_bytes: int
    """Most resident memory, with the pages of mapped files."""
    reached: int
    """Branches reached, of ``branches``; 0 unless the run was guided."""
    branches: int
    kept: int
    """Inputs of the corpus."""


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
    """Send requests for a time, or a number of requests, or until something breaks. ``corpus``
    makes it a guided run, whose inputs are kept there. ``report`` is called each minute."""
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
                realm.ask(request)
                done += 1
                if guided is not None and (count := realm.reached) > reached:
                    guided.keep(request)
                    reached = count
                if done % FURNISHED_EVERY == 0:
                    realm.furnish()
                realm.check() if done % LOOKED_EVERY == 0 else realm.check_figures()
                if now_s - reported_s >= REPORTED_EVERY_S:
                    report(outcome())
                    reported_s = now_s
            realm.check()
            realm.furnish()
            realm.works()
        except (Broken, OSError) as error:  # OSError: the server does not count any more
            repeating = _how_to_repeat(seed, done, last.requests, is_guided=guided is not None)
            broken = f"{error}\n{repeating}"
        return outcome()


def _how_to_repeat(seed: int, done: int, last: list[Drawn], *, is_guided: bool) -> str:
    """Commands that repeat all requests, or the last ones; a guided run depends on more than its
    seed."""
    path = Path(tempfile.gettempdir()) / f"penstock-fuzz-{seed}-{done}"
    path.write_bytes(encoded(last))
    shown = [f"the last of {done} requests: {last[-1].protocol} {last[-1].what}"] if last else []
    if not is_guided:
        shown.append(f"  --only {NAME} --seed {seed} --examples {done}")
    return "\n".join([*shown, f"  --only {NAME} --input-file {path}"])


def replay(content: bytes, memory_bytes: int) -> None:
    """Send the requests of a file. Raises :class:`Broken`."""
    with Attacked(memory_bytes) as realm:
        for request in decoded(content):
            realm.ask(request)
            realm.check()
        realm.furnish()  # a request may have paused publishing
        realm.works()

"""A realm in a process of its own under well-formed requests of extreme values: native, over HTTP
and over AMQP, for as long as asked.

The process has to live, its memory to stay below a bound, its log to be without a fault, and an
administrator who asks all the while to be answered in time. The requests are those that
``extremes.py``, ``http_extremes.py`` and ``amqp_extremes.py`` make of one table of values, in an
order drawn from a seed: the same seed asks the same again.
"""

from __future__ import annotations

import contextlib
import json
import socket
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Final, NamedTuple, Self

import penstock
from penstock.api.realm import DescribeRealm
from penstock.testing.process import ServerProcess
from penstock.wire.native import messages as wire
from penstock.wire.native.frames import FrameReader, frame
from tests.fuzz import extremes, http_extremes
from tests.fuzz.http import furniture, request

NAME: Final = "served"
AT_A_TIME: Final = 12
"""Requests of one kind that are drawn together; then comes another."""
FURNISHED_EVERY: Final = 200
"""Requests may delete what the next ones are about, or pause publishing."""
LOOKED_EVERY: Final = 20
"""So often memory and log are looked at."""
PATIENCE_S: Final = 2.0
"""Whoever is not answered by then hangs up, as clients do."""
PING_EVERY_S: Final = 0.05
READ_BYTES: Final = 1 << 16
LIMITS: Final = {
    "PENSTOCK_LIMITS_MEMORY_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_OFF_HEAP_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_PAGED_BYTES": str(64 << 20),
    "PENSTOCK_LIMITS_STAGE_BYTES": str(32 << 20),
    "PENSTOCK_LIMITS_CHANNELS_MAX": "500",
    "PENSTOCK_LIMITS_DURABLES_PER_CHANNEL_MAX": "100",
    "PENSTOCK_ACCESS_PASSWORD_ROUNDS": "4096",
}
"""What a realm is allowed to keep counts as its memory: so this one keeps little."""
FAULTS: Final = frozenset(("error", "critical"))


_LAST: Final = b"".join(map(bytes, frame(wire.encode(wire.Asked(extremes.LATER, DescribeRealm())))))


class Broken(AssertionError):
    """What a realm under attack must not come to."""


class Drawn(NamedTuple):
    what: str
    protocol: str
    data: bytes
    """All that one connection says."""

    @property
    def input(self) -> bytes:
        """To be tried again by itself."""
        return self.protocol[:1].encode() + self.data


PROTOCOLS: Final = ("native", "http", "amqp")


def drawn(seed: int) -> Iterator[Drawn]:
    """Requests without end, the same of each seed."""
    chance = Random(f"{NAME}/{seed}")
    protocols = [each for each in PROTOCOLS if each != "amqp" or find_spec("proton")]
    while True:
        yield from _DRAWING[chance.choice(protocols)](chance)


def _native(chance: Random) -> Iterator[Drawn]:
    name = chance.choice(sorted(extremes.kinds()))
    if name == "DeleteChannel":
        return  # what the others are about
    headers = list(extremes.messages(name, chance.getrandbits(32)))
    bodies = (b"", extremes.schema_and_batch()[1])
    for header in chance.sample(headers, min(AT_A_TIME, len(headers))):
        data = extremes.conversation(header, chance.choice(bodies))
        yield Drawn(name, "native", data)


def _http(chance: Random) -> Iterator[Drawn]:
    name = chance.choice(sorted(http_extremes.routes()))
    route = http_extremes.routes()[name]
    cases = [
        case
        for case in http_extremes.cases(name)
        if case.what != "as usual" or route.method != "DELETE"
    ]
    for case in chance.sample(cases, min(AT_A_TIME, len(cases))):
        yield Drawn(f"{name}: {case.what}", "http", case.data)


def _amqp(chance: Random) -> Iterator[Drawn]:
    from tests.frontends.amqp.frames import CLOSE, said
    from tests.fuzz import amqp_extremes

    cases = list(amqp_extremes.cases(chance.choice(amqp_extremes.names())))
    for case in chance.sample(cases, min(AT_A_TIME, len(cases))):
        yield Drawn(case.what, "amqp", case.data + said(CLOSE))


_DRAWING: Final = {"native": _native, "http": _http, "amqp": _amqp}


class Attacked:
    """The realm, and all that is watched of it."""

    def __init__(self, memory_bytes: int, ping_s_max: float = 0.0) -> None:
        """``memory_bytes``: so much more than at the start it may have. ``ping_s_max``: an
        administrator's question is answered within that time; 0: nobody asks."""
        self._memory_bytes = memory_bytes
        self._ping_s_max = ping_s_max
        self._folder = tempfile.TemporaryDirectory(prefix="penstock-fuzz-")
        self._server = ServerProcess(
            Path(self._folder.name) / "data",
            *("--http", "--http-port", "0"),
            *(("--amqp-port", "0") if find_spec("proton") else ()),
            environment=LIMITS,
        )
        self._ends = contextlib.ExitStack()
        self._looked_at = 0
        self._least = 0
        self.slowest_s = 0.0
        """An administrator was answered in that time, or a shorter one."""
        self._pinged: Exception | None = None

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as ends:
            ends.callback(self._folder.cleanup)
            ends.enter_context(self._server)
            self.furnish()
            self._least = self.memory_bytes
            if self._ping_s_max:
                stop = threading.Event()
                pinging = threading.Thread(target=self._ping, args=(stop,), name="pinging")
                pinging.start()
                ends.callback(pinging.join)
                ends.callback(stop.set)
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

    def ask(self, one: Drawn) -> None:
        """Say it on a connection of its own, and hear the answer."""
        port = self._server.port
        if one.protocol == "http":
            port = int(self._server.http_url.rpartition(":")[2].strip("/"))
        with (
            contextlib.suppress(OSError),  # it has hung up, or takes its time
            socket.create_connection(("127.0.0.1", port), PATIENCE_S) as line,
        ):
            line.sendall(one.data)
            heard = b""
            while part := line.recv(READ_BYTES):
                heard += part
                if one.protocol != "amqp" and _HEARD[one.protocol](heard):
                    break

    # --- looking -------------------------------------------------------------------------

    @property
    def memory_bytes(self) -> int:
        """What it has of the machine's memory."""
        status = Path(f"/proc/{self._server.pid}/status").read_text()
        [line] = [line for line in status.splitlines() if line.startswith("VmRSS:")]
        return int(line.split()[1]) << 10

    def check(self) -> None:
        """Raises :class:`Broken`."""
        if not self._server.is_running:
            raise Broken(f"the process has ended:\n{self._server.log[-4_000:]}")
        lines = self._server.log[self._looked_at :]
        self._looked_at += len(lines)
        for line in lines.splitlines():
            with contextlib.suppress(json.JSONDecodeError):
                if json.loads(line).get("level") in FAULTS:
                    raise Broken(f"a fault of the realm: {line}")
        if (more := self.memory_bytes - self._least) > self._memory_bytes:
            raise Broken(f"it has {more >> 20} MiB more than at its start")
        if self._pinged is not None:
            raise Broken(f"an administrator is not answered: {self._pinged}")
        if self._ping_s_max and self.slowest_s > self._ping_s_max:
            raise Broken(f"an administrator was answered after {self.slowest_s * 1e3:.0f} ms")

    def works(self) -> None:
        """Raises :class:`Broken` where somebody who has nothing to do with it cannot work."""
        try:
            with penstock.connect(self._server.url) as session:
                own = session.channels.create("own/of-somebody-else")
                own.publish(b"x")
                with own.subscribe(start="earliest", timeout=30) as subscription:
                    batch = subscription.next_batch()
                session.channels.delete("own/of-somebody-else")
        except penstock.PenstockError as error:
            raise Broken(f"another client cannot work: {error}") from error
        if batch is None or [event.data for event in batch] != [b"x"]:
            raise Broken("another client does not get what it has published")

    def _ping(self, stop: threading.Event) -> None:
        try:
            with penstock.connect(self._server.url) as session:
                while not stop.wait(PING_EVERY_S):
                    begun_s = time.perf_counter()
                    session.info()
                    self.slowest_s = max(self.slowest_s, time.perf_counter() - begun_s)
        except penstock.PenstockError as error:
            self._pinged = error


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


_HEARD: Final = {"native": has_worked, "http": is_answered}


# --- the run -----------------------------------------------------------------------------


class Outcome(NamedTuple):
    done: int
    broken: str
    """What it has come to, and how to try it again; empty: nothing."""
    slowest_s: float


def attack(
    seed: int,
    *,
    seconds: float = 0.0,
    examples: int = 0,
    memory_bytes: int,
    ping_s_max: float = 0.0,
) -> Outcome:
    """Ask for a time, or a number of requests, or until something breaks."""
    done, broken = 0, ""
    with Attacked(memory_bytes, ping_s_max) as realm:
        end_s = time.monotonic_ns() / 1e9 + seconds
        for one in drawn(seed):
            if done >= examples if examples else time.monotonic_ns() / 1e9 >= end_s:
                break
            try:
                realm.ask(one)
                done += 1
                if done % FURNISHED_EVERY == 0:
                    realm.furnish()
                if done % LOOKED_EVERY == 0:
                    realm.check()
            except Broken as error:
                broken = f"{error}\n{_again(seed, done, one)}"
                break
        try:
            realm.check()
            realm.furnish()
            realm.works()
        except Broken as error:
            broken = broken or f"{error}\n{_again(seed, done, one)}"
        return Outcome(done, broken, realm.slowest_s)


def _again(seed: int, done: int, one: Drawn) -> str:
    """How to have it asked again: all of it, and the last request by itself."""
    path = Path(tempfile.gettempdir()) / f"penstock-fuzz-{seed}-{done}"
    path.write_bytes(one.input)
    return (
        f"the last of {done} requests was {one.protocol} {one.what}\n"
        f"  --only {NAME} --seed {seed} --examples {done}\n"
        f"  --only {NAME} --input-file {path}"
    )


def replay(data: bytes, memory_bytes: int) -> None:
    """One request by itself. Raises :class:`Broken`."""
    protocol = next(each for each in PROTOCOLS if each.encode().startswith(data[:1]))
    with Attacked(memory_bytes) as realm:
        realm.ask(Drawn("replayed", protocol, data[1:]))
        realm.check()
        realm.furnish()  # it may have paused publishing
        realm.works()

"""Requests with extreme values in every protocol, and changed copies of requests that reached new
code.

A seed determines the requests of :func:`drawn`. :class:`Guided` mixes them with changed copies of
earlier ones, selected by the code they reached.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

import msgspec

from tests.fuzz import (
    amqp,
    connections,
    extremes,
    http,
    http_extremes,
    mqtt_connections,
    mqtt_extremes,
)
from tests.fuzz.mutating import mutated

PROTOCOLS: Final = ("native", "http", "amqp", "mqtt")
AT_A_TIME: Final = 12
"""Number of requests of one kind in a row."""
COLUMNS: Final = "columns"
"""Name for native clients that publish extreme columns."""
KEPT_MAX: Final = 2_000
"""Number of inputs of a protocol that are kept for changed copies."""
KEPT_BYTES_MAX: Final = 256 << 10
"""Size of the largest input that is kept."""
CHANGED_SHARE: Final = 0.6
"""Share of changed copies among the requests of a guided run."""


class Drawn(NamedTuple):
    what: str
    protocol: str
    data: bytes
    """All bytes of one connection."""


def encode_requests(requests: list[Drawn]) -> bytes:
    """Encode requests as the content of a file that repeats them."""
    return msgspec.msgpack.encode([(request.protocol, request.data) for request in requests])


def decode_requests(content: bytes) -> list[Drawn]:
    pairs = msgspec.msgpack.decode(content, type=list[tuple[str, bytes]])
    return [Drawn("repeated", protocol, data) for protocol, data in pairs]


def protocols() -> list[str]:
    """Return the protocols that can be served on this machine."""
    return [protocol for protocol in PROTOCOLS if protocol != "amqp" or find_spec("proton")]


def drawn(seed: int) -> Iterator[Drawn]:
    """Yield requests without end, the same for the same seed."""
    chance = Random(f"served/{seed}")
    while True:
        yield from _DRAWING[chance.choice(protocols())](chance)


def _native(chance: Random) -> Iterator[Drawn]:
    name = chance.choice((*sorted(extremes.kinds()), *[COLUMNS] * 3))
    if name == "DeleteChannel":
        return  # the other requests need this channel
    if name == COLUMNS:
        for what, data in chance.sample(extremes.publishes(), AT_A_TIME):
            yield Drawn(what, "native", data)
        return
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
    from packages.amqp.tests.frames import CLOSE, frame_of
    from tests.fuzz import amqp_extremes

    cases = list(amqp_extremes.cases(chance.choice(amqp_extremes.names())))
    for case in chance.sample(cases, min(AT_A_TIME, len(cases))):
        yield Drawn(case.what, "amqp", case.data + frame_of(CLOSE))


def _mqtt(chance: Random) -> Iterator[Drawn]:
    cases = list(mqtt_extremes.cases(chance.choice(sorted(mqtt_extremes.KINDS))))
    for case in chance.sample(cases, min(AT_A_TIME, len(cases))):
        yield Drawn(case.what, "mqtt", case.data)


_DRAWING: Final = {"native": _native, "http": _http, "amqp": _amqp, "mqtt": _mqtt}


# --- changed copies ----------------------------------------------------------------------

_CORRECTED: Final[Mapping[str, Callable[[bytes], bytes]]] = {
    "native": connections.reframed,
    "http": http.with_length,
    "amqp": amqp.reframed,
    "mqtt": mqtt_connections.reframed,
}
"""Functions that correct the lengths stated in a request."""


class Guided:
    """Requests of a seed, and changed copies of requests that reached new code.

    The latter are kept in a folder, also for the next run.
    """

    def __init__(self, seed: int, corpus: Path) -> None:
        self._corpus = corpus
        self._chance = Random(f"guided/{seed}")
        self._drawn = drawn(seed)
        self._kept: dict[str, list[bytes]] = {protocol: [] for protocol in protocols()}
        self._kept["native"] += connections.conversations()
        self._kept["http"] += http.conversations()
        self._kept["mqtt"] += mqtt_connections.conversations()
        if "amqp" in self._kept:
            self._kept["amqp"] += amqp.conversations()
        corpus.mkdir(parents=True, exist_ok=True)
        for path in sorted(corpus.iterdir()):
            protocol = path.name.partition("-")[0]
            if protocol in self._kept:
                self._kept[protocol].append(path.read_bytes())

    def __iter__(self) -> Iterator[Drawn]:
        while True:
            if self._chance.random() < CHANGED_SHARE:
                yield self._changed()
            else:
                yield next(self._drawn)

    @property
    def kept(self) -> int:
        return sum(map(len, self._kept.values()))

    def keep(self, request: Drawn) -> None:
        """Keep a request that reached new code, so that changed copies of it are made."""
        kept = self._kept[request.protocol]
        if len(request.data) > KEPT_BYTES_MAX or request.data in kept:
            return
        kept.append(request.data)
        digest = sha256(request.data).hexdigest()[:32]
        (self._corpus / f"{request.protocol}-{digest}").write_bytes(request.data)
        if len(kept) > KEPT_MAX:
            del kept[self._chance.randrange(KEPT_MAX // 2)]

    def _changed(self) -> Drawn:
        protocol = self._chance.choice(sorted(self._kept))
        kept = self._kept[protocol]
        recent = kept[-50:] if self._chance.random() < 0.5 else kept
        data = mutated(self._chance, recent)
        if self._chance.random() < 0.7:
            data = _CORRECTED[protocol](data)
        return Drawn("a changed copy", protocol, data)

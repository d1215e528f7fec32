"""Records that the clients of a realm keep about themselves, in files outside of the realm.

Each fact is a line, written with one system call, so that neither the death of a client nor that of
the realm loses it. Times are those of the machine's steady clock, which is the same for all
processes. A publisher writes::

    try FIRST COUNT           events are about to be published
    ok FIRST COUNT ID TIME    they are acknowledged; their ids start at ID, -1 if unknown
    no FIRST COUNT CODE TIME  they were refused: none of them may be stored
    stopped FIRST COUNT TIME  the realm stops: they may be stored or not

and a consumer::

    got TIME DIGEST IDS [PUBLISHER:NUMBER,…]   events arrived, with their publishers if needed
    ack TIME IDS              they are about to be acknowledged
    acked TIME IDS            their acknowledgement is confirmed
    unsure TIME IDS REASON…   it is not confirmed, and may have been done
    stale TIME IDS            the last events came over an ended connection: others get them
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from penstock_core.ids.ids import IdSet, Span
from tests.faults.names import publisher_of

LINE_BYTES_MAX = 1 << 16


def digest_of(datas: Iterable[bytes]) -> str:
    """Return a short hash of events' data, in their order."""
    return xxh3_64_hexdigest(b"\n".join(datas))


def spans_of(ids: Sequence[int]) -> str:
    """Return ids in their order, as ranges: ``3-5,9-9``."""
    runs: list[list[int]] = []
    for event_id in ids:
        if runs and runs[-1][1] + 1 == event_id:
            runs[-1][1] = event_id
        else:
            runs.append([event_id, event_id])
    return ",".join(f"{first}-{last}" for first, last in runs)


def ids_of_spans(text: str) -> list[int]:
    ids: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        ids += range(int(first), int(last) + 1)
    return ids


class Diary:
    """The file of one client; the next process of the client appends to it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def record_attempt(self, first: int, count: int) -> None:
        self.write("try", first, count)

    def record_acknowledged(self, first: int, count: int, first_id: int = -1) -> None:
        self.write("ok", first, count, first_id, time.monotonic_ns())

    def record_refused(self, first: int, count: int, code: str) -> None:
        self.write("no", first, count, code, time.monotonic_ns())

    def record_stopped(self, first: int, count: int) -> None:
        self.write("stopped", first, count, time.monotonic_ns())

    def record_received(
        self, ids: Sequence[int], datas: Sequence[bytes], *, named: bool = False
    ) -> None:
        words: list[object] = ["got", time.monotonic_ns(), digest_of(datas), spans_of(ids)]
        if named:
            words.append(",".join(_name_of(data) for data in datas))
        self.write(*words)

    def record_acknowledging(self, ids: Sequence[int]) -> None:
        self.write("ack", time.monotonic_ns(), spans_of(ids))

    def record_unsure(self, ids: Sequence[int], error: Exception) -> None:
        reason = f"{type(error).__name__}: {error}".replace("\n", " ")
        self.write("unsure", time.monotonic_ns(), spans_of(ids), reason)

    def record_stale(self, ids: Sequence[int]) -> None:
        self.write("stale", time.monotonic_ns(), spans_of(ids))

    def record_confirmed(self, ids: Sequence[int]) -> None:
        self.write("acked", time.monotonic_ns(), spans_of(ids))


def last_received(path: Path) -> int:
    """Return the last id that a consumer has recorded; -1 if none."""
    lines = [line.split(" ") for line in _end_of(path) if line.startswith("got ")]
    return ids_of_spans(lines[-1][3])[-1] if lines else -1


def acknowledged_at(path: Path) -> list[int]:
    """Return the times at which a publisher's events were acknowledged, in order."""
    return [int(words[-1]) for words in _lines(path) if words[0] == "ok"]


def last_acknowledged(path: Path) -> int:
    """Return the last time at which a publisher's events were acknowledged; -1 if never."""
    lines = [line for line in _end_of(path) if line.startswith("ok ") and line.count(" ") == 4]
    return int(lines[-1].rpartition(" ")[2]) if lines else -1


def _end_of(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LINE_BYTES_MAX))
        return file.read().decode().splitlines()


def _name_of(data: bytes) -> str:
    publisher = publisher_of(data)
    return "?:0" if publisher is None else f"{publisher[0]}:{publisher[1]}"


class Acknowledged(Struct, frozen=True):
    first: int
    count: int
    first_id: int
    """-1 if the answer had no id."""


class Published(Struct):
    """The content of a publisher's file."""

    name: str
    attempted: IdSet
    acknowledged: IdSet
    refused: int
    answers: list[Acknowledged]
    open: tuple[int, int] | None
    """The last attempt, if it has no answer."""
    stopped: int = 0
    """Number of answers that the realm stops."""

    @property
    def next(self) -> int:
        """The first number that was never attempted."""
        return self.attempted.spans[-1].end if self.attempted else 0


def read_published(path: Path) -> Published:
    """Read the file of a publisher; empty if it does not exist yet."""
    published = Published(path.stem, IdSet(), IdSet(), refused=0, answers=[], open=None)
    for words in _lines(path):
        match words:
            case ["try", first, count]:
                published.open = (int(first), int(count))
                published.attempted.add(Span(int(first), int(first) + int(count)))
            case ["ok", first, count, first_id, _]:
                published.open = None
                published.acknowledged.add(Span(int(first), int(first) + int(count)))
                published.answers.append(Acknowledged(int(first), int(count), int(first_id)))
            case ["no", _, count, *_]:
                published.open = None
                published.refused += int(count)
            case ["stopped", *_]:
                published.stopped += 1
            case _:
                raise ValueError(f"{path} has a line of other words: {words}")
    return published


class Received(Struct, frozen=True):
    """A line of a consumer's file."""

    at_ns: int
    what: str
    """``got``, ``ack``, ``acked`` or ``stale``."""
    ids: list[int]
    digest: str
    consumer: str
    """Name of the consumer."""
    events: tuple[tuple[str, int], ...] = ()
    """Publisher and number of the events, if they were recorded."""


def read_received(paths: Iterable[Path]) -> list[Received]:
    """Read the lines of several consumers, in the order of time."""
    lines = []
    for path in paths:
        for words in _lines(path):
            match words:
                case ["got", at, digest, spans, *names]:
                    ids = ids_of_spans(spans)
                    line = Received(
                        int(at),
                        "got",
                        ids,
                        digest=digest,
                        consumer=path.stem,
                        events=_events(names),
                    )
                case ["ack" | "acked" | "stale" as what, at, spans]:
                    line = Received(
                        int(at), what, ids_of_spans(spans), digest="", consumer=path.stem
                    )
                case _:
                    continue
            lines.append(line)
    return sorted(lines, key=lambda line: line.at_ns)


def _events(names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    pairs = (name.split(":") for text in names for name in text.split(","))
    return tuple((publisher, int(number)) for publisher, number in pairs)


def _lines(path: Path) -> Iterator[list[str]]:
    """Yield the complete lines; a killed process may leave a partial last one."""
    if not path.exists():
        return
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield line.split(" ")

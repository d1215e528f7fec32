"""What clients of a realm write down about themselves, in files outside of it.

One line a fact, written by one call of the system, so that neither the death of a client nor that
of the realm takes it back. Times are those of the machine's own steady clock, the same for all
processes. A publisher writes::

    try FIRST COUNT           events are about to be published
    ok FIRST COUNT ID TIME    they are acknowledged; ids from ID on, or -1 where it is not told
    no FIRST COUNT CODE TIME  they were refused: nothing of them may be kept
    stopped FIRST COUNT TIME  the realm stops: they may be kept, or not

and a consumer::

    got TIME DIGEST IDS [WHO:NUMBER,…]   events came, where it matters with whose they are
    ack TIME IDS              is about to be acknowledged
    acked TIME IDS            its acknowledgement is confirmed
    unsure TIME IDS WHY…      it is not, and may have been done
    stale TIME IDS            what came last is of a connection that has ended: it goes to others
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from msgspec import Struct
from xxhash import xxh3_64_hexdigest

from penstock_core.ids.ids import IdSet, Span
from tests.faults.names import parsed

LINE_BYTES_MAX = 1 << 16


def digest_of(datas: Iterable[bytes]) -> str:
    """A short name for what some events hold, in their order."""
    return xxh3_64_hexdigest(b"\n".join(datas))


def spans_of(ids: Sequence[int]) -> str:
    """Ids in their order, as ranges: ``3-5,9-9``."""
    runs: list[list[int]] = []
    for event_id in ids:
        if runs and runs[-1][1] + 1 == event_id:
            runs[-1][1] = event_id
        else:
            runs.append([event_id, event_id])
    return ",".join(f"{first}-{last}" for first, last in runs)


def ids_of_spans(text: str) -> list[int]:
    found: list[int] = []
    for run in text.split(","):
        first, _, last = run.partition("-")
        found += range(int(first), int(last) + 1)
    return found


class Diary:
    """One client's file; a second life of the client goes on with it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)

    def write(self, *words: object) -> None:
        os.write(self._file, (" ".join(map(str, words)) + "\n").encode())

    def trying(self, first: int, count: int) -> None:
        self.write("try", first, count)

    def done(self, first: int, count: int, first_id: int = -1) -> None:
        self.write("ok", first, count, first_id, time.monotonic_ns())

    def refused(self, first: int, count: int, code: str) -> None:
        self.write("no", first, count, code, time.monotonic_ns())

    def stopped(self, first: int, count: int) -> None:
        self.write("stopped", first, count, time.monotonic_ns())

    def got(self, ids: Sequence[int], datas: Sequence[bytes], *, named: bool = False) -> None:
        words: list[object] = ["got", time.monotonic_ns(), digest_of(datas), spans_of(ids)]
        if named:
            words.append(",".join(_name_of(data) for data in datas))
        self.write(*words)

    def acking(self, ids: Sequence[int]) -> None:
        self.write("ack", time.monotonic_ns(), spans_of(ids))

    def unsure(self, ids: Sequence[int], why: Exception) -> None:
        said = f"{type(why).__name__}: {why}".replace("\n", " ")
        self.write("unsure", time.monotonic_ns(), spans_of(ids), said)

    def stale(self, ids: Sequence[int]) -> None:
        self.write("stale", time.monotonic_ns(), spans_of(ids))

    def acked(self, ids: Sequence[int]) -> None:
        self.write("acked", time.monotonic_ns(), spans_of(ids))


def last_received(path: Path) -> int:
    """The last id a consumer has written down; -1: none."""
    got = [line.split(" ") for line in _end_of(path) if line.startswith("got ")]
    return ids_of_spans(got[-1][3])[-1] if got else -1


def acknowledged_at(path: Path) -> list[int]:
    """When a publisher was acknowledged something, in order."""
    return [int(words[-1]) for words in _lines(path) if words[0] == "ok"]


def last_acknowledged(path: Path) -> int:
    """When a publisher was acknowledged something for the last time; -1: never."""
    told = [line for line in _end_of(path) if line.startswith("ok ") and line.count(" ") == 4]
    return int(told[-1].rpartition(" ")[2]) if told else -1


def _end_of(path: Path) -> list[str]:
    if not path.exists():
        return []
    with path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - LINE_BYTES_MAX))
        return file.read().decode().splitlines()


def _name_of(data: bytes) -> str:
    found = parsed(data)
    return "?:0" if found is None else f"{found[0]}:{found[1]}"


class Acknowledged(Struct, frozen=True):
    first: int
    count: int
    first_id: int
    """-1: the realm did not say."""


class Published(Struct):
    """The file of one publisher, read back."""

    name: str
    attempted: IdSet
    acknowledged: IdSet
    refused: int
    answers: list[Acknowledged]
    open: tuple[int, int] | None
    """The last attempt, when nothing came of it."""
    stopped: int = 0
    """How often it was told that the realm stops."""

    @property
    def next(self) -> int:
        """The first number that was never tried."""
        return self.attempted.spans[-1].end if self.attempted else 0


def read_published(path: Path) -> Published:
    """The file of a publisher; an empty one when there is none yet."""
    found = Published(path.stem, IdSet(), IdSet(), refused=0, answers=[], open=None)
    for words in _lines(path):
        match words:
            case ["try", first, count]:
                found.open = (int(first), int(count))
                found.attempted.add(Span(int(first), int(first) + int(count)))
            case ["ok", first, count, first_id, _]:
                found.open = None
                found.acknowledged.add(Span(int(first), int(first) + int(count)))
                found.answers.append(Acknowledged(int(first), int(count), int(first_id)))
            case ["no", _, count, *_]:
                found.open = None
                found.refused += int(count)
            case ["stopped", *_]:
                found.stopped += 1
            case _:
                raise ValueError(f"{path} has a line of other words: {words}")
    return found


class Received(Struct, frozen=True):
    """One line of a consumer."""

    at_ns: int
    what: str
    """``got``, ``ack``, ``acked`` or ``stale``."""
    ids: list[int]
    digest: str
    by: str
    """Which consumer."""
    events: tuple[tuple[str, int], ...] = ()
    """Whose they are, where it was written down: publisher and number."""


def read_received(paths: Iterable[Path]) -> list[Received]:
    """What consumers that share something wrote, in the order of time."""
    found = []
    for path in paths:
        for words in _lines(path):
            match words:
                case ["got", at, digest, spans, *names]:
                    ids = ids_of_spans(spans)
                    line = Received(
                        int(at), "got", ids, digest=digest, by=path.stem, events=_events(names)
                    )
                case ["ack" | "acked" | "stale" as what, at, spans]:
                    line = Received(int(at), what, ids_of_spans(spans), digest="", by=path.stem)
                case _:
                    continue
            found.append(line)
    return sorted(found, key=lambda line: line.at_ns)


def _events(names: Sequence[str]) -> tuple[tuple[str, int], ...]:
    pairs = (name.split(":") for text in names for name in text.split(","))
    return tuple((who, int(number)) for who, number in pairs)


def _lines(path: Path) -> Iterator[list[str]]:
    """Whole lines; the last one may be what a death has left of it."""
    if not path.exists():
        return
    text = path.read_text()
    for line in text[: text.rfind("\n") + 1].splitlines():
        yield line.split(" ")

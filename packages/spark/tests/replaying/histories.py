"""Archives to replay, time that passes by itself, and processes that die when told to."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds
import pyarrow.parquet as pq

from penstock.client.sync.sync import Session
from penstock_core.columns.schema.layout import UTC_MICROSECONDS

START_US = 1_357_000_000_000_000
"""Start of the archives of these tests: early in 2013."""


class Killed(BaseException):
    """The process ends here; nothing is cleaned up."""


class PassingTime:
    """A timer whose waits take no time; it says stop after ``stop_us``."""

    def __init__(self, stop_us: int | None = None, step_us: int = 0) -> None:
        self.now = 1_000_000
        self.waits: list[int] = []
        self._end = None if stop_us is None else self.now + stop_us
        self._step = step_us

    def now_us(self) -> int:
        self.now += self._step
        return self.now

    def wait(self, us: int) -> bool:
        if us:
            self.waits.append(us)
            self.now += us
        return self._end is not None and self.now >= self._end


class Memory:
    """A position that outlives the process."""

    def __init__(self) -> None:
        self.content: bytes | None = None

    def read(self) -> bytes | None:
        return self.content

    def write(self, content: bytes) -> None:
        self.content = content


class Dying:
    """Ends the process at the n-th step: before something is done, or right after."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Killed


class ToRealm:
    """Publishes to a realm; remembers when."""

    def __init__(self, session: Session, timer: PassingTime | None = None) -> None:
        self._session = session
        self._timer = timer
        self.at: list[tuple[int, str, int]] = []
        """Time, channel, events."""

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        target = self._session.channels.get(channel)
        target.publish_bodies(bodies, producer=producer, sequence=sequence)
        if self._timer is not None:
            count = sum(body.num_rows for body in bodies)
            self.at.append((self._timer.now, channel, count))


class MortalPlace:
    """A position written by a process that may die."""

    def __init__(self, memory: Memory, dying: Dying) -> None:
        self._memory = memory
        self._dying = dying

    def read(self) -> bytes | None:
        return self._memory.read()

    def write(self, content: bytes) -> None:
        self._dying.step()
        self._memory.write(content)
        self._dying.step()


class MortalOutlet:
    """Publishes from a process that may die."""

    def __init__(self, outlet: ToRealm, dying: Dying) -> None:
        self._outlet = outlet
        self._dying = dying

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        self._dying.step()
        self._outlet.publish(channel, bodies, producer, sequence=sequence)
        self._dying.step()


def mortal(memory: Memory, outlet: ToRealm, dying: Dying) -> tuple[MortalPlace, MortalOutlet]:
    """Both of them, which die together."""
    return MortalPlace(memory, dying), MortalOutlet(outlet, dying)


def events(ids: Sequence[int], times_us: Sequence[int], **columns: Any) -> pa.Table:
    """Rows as an archive has them; times count from ``START_US``."""
    return pa.table(
        {
            "event_id": pa.array(ids, pa.int64()),
            "published": pa.array([START_US + time_us for time_us in times_us], pa.int64()).cast(
                UTC_MICROSECONDS
            ),
            "tag": pa.nulls(len(ids), pa.string()),
            "data": pa.array([f"e{event}".encode() for event in ids], pa.binary()),
            **columns,
        }
    )


def archive(folder: Path, *tables: pa.Table, row_group_size: int | None = None) -> ds.Dataset:
    """A table of Parquet files."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=row_group_size)
    return ds.dataset(folder, format="parquet")


def stored(session: Session, channel: str) -> Iterator[bytes]:
    """The data of what a channel holds, in order."""
    for event in session.channels.get(channel).browse():
        yield event.data

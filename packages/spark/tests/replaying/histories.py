"""Archives to replay, a timer whose waits take no time, and a process killed at a chosen step."""

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
    """The process was killed at this point, and could clean up nothing."""


class PassingTime:
    """A timer whose waits take no time. ``wait`` returns True, which stops the replay, after
    ``stop_us``. Each look at the time advances it by ``step_us``."""

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


class PlaceInMemory:
    """A stored position, which remains when the process is killed."""

    def __init__(self) -> None:
        self.content: bytes | None = None

    def read(self) -> bytes | None:
        return self.content

    def write(self, content: bytes) -> None:
        self.content = content


class KillPoint:
    """Raises ``Killed`` at the n-th step. An action counts two steps: before it and after it."""

    def __init__(self, at: int) -> None:
        self._left = at

    def step(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise Killed


class RecordingOutlet:
    """Publishes to a realm, and records when."""

    def __init__(self, session: Session, timer: PassingTime | None = None) -> None:
        self._session = session
        self._timer = timer
        self.published: list[tuple[int, str, int]] = []
        """Time, channel and number of events of each publish, if there is a timer."""

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        target = self._session.channels.get(channel)
        target.publish_bodies(bodies, producer=producer, sequence=sequence)
        if self._timer is not None:
            count = sum(body.num_rows for body in bodies)
            self.published.append((self._timer.now, channel, count))


class MortalPlace:
    """Stores a position in a process that is killed before or after a write."""

    def __init__(self, memory: PlaceInMemory, kill_point: KillPoint) -> None:
        self._memory = memory
        self._dying = kill_point

    def read(self) -> bytes | None:
        return self._memory.read()

    def write(self, content: bytes) -> None:
        self._dying.step()
        self._memory.write(content)
        self._dying.step()


class MortalOutlet:
    """Publishes from a process that is killed before or after a publish."""

    def __init__(self, outlet: RecordingOutlet, kill_point: KillPoint) -> None:
        self._outlet = outlet
        self._dying = kill_point

    def publish(
        self, channel: str, bodies: Sequence[pa.RecordBatch], producer: str, sequence: int
    ) -> None:
        self._dying.step()
        self._outlet.publish(channel, bodies, producer, sequence=sequence)
        self._dying.step()


def mortal(
    memory: PlaceInMemory, outlet: RecordingOutlet, kill_point: KillPoint
) -> tuple[MortalPlace, MortalOutlet]:
    """Return place and outlet of one process, whose steps are counted together."""
    return MortalPlace(memory, kill_point), MortalOutlet(outlet, kill_point)


def events(ids: Sequence[int], times_us: Sequence[int], **columns: Any) -> pa.Table:
    """Return rows of an archive. ``times_us`` are relative to ``START_US``."""
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
    """Write one Parquet file for each table, and return them as a dataset."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, table in enumerate(tables):
        pq.write_table(table, folder / f"{number:03}.parquet", row_group_size=row_group_size)
    return ds.dataset(folder, format="parquet")


def stored(session: Session, channel: str) -> Iterator[bytes]:
    """Yield the data of the events of a channel, in order."""
    for event in session.channels.get(channel).browse():
        yield event.data

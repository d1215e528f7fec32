"""Runs of archivers for tests, and a table that fails."""

from __future__ import annotations

from collections.abc import Callable
from threading import Event as Flag
from typing import Any

from pyiceberg.catalog import Catalog

import penstock
from penstock.client.archiving.archiver import ArchiveProgress, Archiver, ArchiveSettings
from penstock.client.archiving.lake import Lake
from penstock.client.sync.sync import Channel, Session
from penstock.tables import Compacted, Table
from penstock.tables.attempts import PausingClock
from penstock_core.vocabulary.choice import choice_of
from penstock_core.vocabulary.errors import Unavailable

URI = "iceberg://prod/lake/orders"
NAME = ("lake", "orders")
LAKE = Lake(URI, "iceberg")


def refuse_retry(channel: str, error: Exception) -> None:
    raise AssertionError(channel) from error


def run_archiver(
    session: Session,
    on_commit: Callable[[ArchiveProgress], None],
    *,
    lake: Lake = LAKE,
    stopping: Flag | None = None,
    on_retry: Callable[[str, Exception], None] = refuse_retry,
    **settings: Any,
) -> None:
    """Run an archiver of ``orders`` until it fails or ``stopping`` is set."""
    Archiver(
        session,
        choice_of("orders"),
        lake,
        settings=ArchiveSettings(**settings),
        on_commit=on_commit,
        on_retry=on_retry,
    ).run(stopping or Flag(), once=False)


class Run:
    """The runs of an archiver, each of which ends with the stored events."""

    def __init__(
        self, session: Session, channels: str = "orders", lake: Lake = LAKE, **settings: object
    ) -> None:
        self.commits: list[ArchiveProgress] = []
        self.archiver = Archiver(
            session,
            choice_of(channels),
            lake,
            settings=ArchiveSettings(**settings),  # type: ignore[arg-type]
            on_commit=self.commits.append,
            on_retry=refuse_retry,
        )

    def once(self) -> list[ArchiveProgress]:
        self.commits.clear()
        self.archiver.run(Flag(), once=True)
        return self.commits


def publish(channel: Channel, first: int, end: int, **more: object) -> None:
    channel.publish_many(
        [
            penstock.Event(
                f"d{n}".encode(),
                tag="late" if n % 2 else None,
                properties={"n": n, **more},
                headers={"correlation_id": str(n)},
                priority=n % 10,
            )
            for n in range(first, end)
        ]
    )


def ids_in(catalog: Catalog, name: tuple[str, ...] = NAME) -> list[int]:
    """Return the ids in a table as pyiceberg reads it."""
    scan = catalog.load_table(name).scan(selected_fields=("event_id",))
    return sorted(scan.to_arrow().column(0).to_pylist())


class FailingOnce(Table):
    """A table whose first compaction finds its catalog unavailable."""

    failures = 1

    def compact(
        self, target_bytes: int = 1, *, keep_hours: int = 0, rows_enough: int | None = None
    ) -> Compacted:
        if type(self).failures:
            type(self).failures -= 1
            raise Unavailable("the catalog is down")
        return super().compact(target_bytes, keep_hours=keep_hours, rows_enough=rows_enough)


class FailingLake(Lake, frozen=True):
    def table_of(self, channel: str, clock: PausingClock | None = None) -> Table:
        return FailingOnce.open(self.uri_of(channel), self.format, clock=clock)

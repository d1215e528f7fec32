"""Prepares a run: creates the channels, or finds those of an interrupted run."""

from __future__ import annotations

import msgspec

import penstock
from examples.flights.names import DELAYS, FLIGHTS, GROUND_CREW
from examples.flights.reconciliation import Outstanding
from examples.flights.run_record import Beginning, CannotBegin, RunRecord
from penstock.client.sync.sync import Channel


class Prepared(msgspec.Struct, frozen=True):
    """The state at the beginning of a run."""

    beginning: Beginning
    stored: int
    """Flights published by the run that is resumed."""
    outstanding: Outstanding

    def __str__(self) -> str:
        match self.beginning:
            case Beginning.FIRST:
                return "Fresh run: nothing was there before."
            case Beginning.REPLACED:
                return (
                    "Fresh run in place of the one before: its channels, files and report are "
                    "removed, nothing else."
                )
            case Beginning.RESUMED:
                return (
                    f"Resuming the run that was interrupted: {self.stored:,} flights are stored, "
                    f"{self.outstanding.events:,} of them not yet acknowledged."
                )


def prepare(
    record: RunRecord, session: penstock.Session, rows: int, beginning: Beginning
) -> Prepared:
    """Create the channels, or find those of an interrupted run. Raises ``CannotBegin``."""
    channels = session.channels
    existing = [name for name in (FLIGHTS, DELAYS) if name in channels.list()]
    if beginning is Beginning.FIRST:
        _refuse_foreign(record, existing)
    if beginning is Beginning.RESUMED and len(existing) < 2 and record.has_output:
        beginning = Beginning.REPLACED  # a channel of the interrupted run was deleted
    if beginning is Beginning.REPLACED:
        record.clear(rows)
        for name in existing:
            channels.delete(name)
        existing = []
    if beginning is not Beginning.RESUMED:
        record.record_start(rows)
    if FLIGHTS not in existing:
        # Spark and late readers still need the events that the durable has consumed.
        channels.create(FLIGHTS, type="persistent", retain_consumed=True)
    if DELAYS not in existing:
        channels.create(DELAYS, type="persistent")
    flights = channels.get(FLIGHTS)
    if GROUND_CREW not in [durable.name for durable in flights.durables.list()]:
        flights.durables.create(GROUND_CREW, type="shared", start="earliest")
    return Prepared(beginning, flights.info().last_event_id + 1, _outstanding(flights))


def _refuse_foreign(record: RunRecord, existing: list[str]) -> None:
    """Raise ``CannotBegin`` if channels or files exist that this program has not created: it must
    not change or remove them."""
    if existing:
        raise CannotBegin(
            f"the realm in {record.realm} has a channel {existing[0]} that this program has not "
            "made; choose another --dir, or delete the channel"
        )
    if record.has_output:
        raise CannotBegin(
            f"{record.work} has files that this program has not made; choose another --dir"
        )


def _outstanding(flights: Channel) -> Outstanding:
    """Return the number of unacknowledged events of the durable, and the sum of their ids."""
    ids = [batch.event_ids for batch in flights.durables.get(GROUND_CREW).browse().batches()]
    return Outstanding(sum(map(len, ids)), sum(int(some.sum()) for some in ids))

"""Binds a streaming query to a durable: the realm keeps events until the query has committed them.

While the query runs, the process that plans its micro-batches holds the durable exclusively; tasks
only read. A micro-batch consists of the outstanding events of a range of ids. The query holds these
events from their planning until a later call proves that the micro-batch is in the checkpoint; then
they are acknowledged. If the query ends before that, in any way, its process ends, and the realm
takes the events back as from any client (SEM D13). Spark does not report the end of a query, and
commits late or not at all, so nothing here relies on either.
"""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, Final, Protocol

import msgspec
import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock.client.archiving.durables import existing_durable
from penstock.client.sync.sync import Durable, DurableHold, Session
from penstock_core.api.channels import Location
from penstock_core.columns.events.batch import ids_of
from penstock_core.ids.ids import IdSet, Span
from penstock_core.vocabulary.errors import (
    DurableInUse,
    IllegalState,
    InvalidArgument,
    PenstockError,
)
from penstock_core.vocabulary.stored_ids import Ids, ranges, stored_form
from penstock_spark.connections import ChannelLink, ask_realm
from penstock_spark.options import SourceOptions
from penstock_spark.reading.channels import Links, first_id_to_read, links_of
from penstock_spark.reading.offsets import Positions
from penstock_spark.reading.plan import EventRange

WITHOUT_SELECTOR: Final = ("exclusive", "priority")
"""Types of durables that have no selector: their readers set one."""
OPEN_RETRY_S: Final = 0.1
"""Seconds between attempts to open a durable that is in use."""

OutstandingIds = Mapping[str, IdSet]
"""Ids of the events that the durable has not acknowledged, by channel."""


class Binding(Protocol):
    """Applies the positions of a stream to a durable, if the stream is bound to one."""

    def first(self, session: Session, link: ChannelLink) -> int:
        """Return the id of the first event that a stream without a checkpoint reads."""
        ...

    def acknowledge(self, session: Session, links: Links, committed: Positions) -> None:
        """Acknowledge all events before the positions ``committed``, which are in the checkpoint.

        Raises ``DurableInUse`` if another client holds the durable.
        """
        ...

    def take(
        self, session: Session, links: Links, spans: Mapping[str, Span]
    ) -> OutstandingIds | None:
        """Reserve the outstanding events of ``spans`` for the query, and return their ids.

        None means that the stream has no durable, so that a micro-batch has all stored events.
        """
        ...

    def commit(self, committed: Positions) -> None:
        """Acknowledge as :meth:`acknowledge` does, but ignore errors, which would end the query."""
        ...


def binding_of(options: SourceOptions) -> Binding:
    """Return the binding for the options of a stream.

    Raises ``InvalidArgument`` if the options set both a durable and a start.
    """
    return Bound(options) if options.durable else Unbound(options)


class Unbound:
    """A stream without a durable: reading does not change how long the realm keeps events."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def first(self, session: Session, link: ChannelLink) -> int:
        return first_id_to_read(self._options, link, "latest")

    def acknowledge(self, session: Session, links: Links, committed: Positions) -> None:
        pass

    def take(
        self, session: Session, links: Links, spans: Mapping[str, Span]
    ) -> OutstandingIds | None:
        return None

    def commit(self, committed: Positions) -> None:
        pass


class _HeldDurable(Struct):
    """The exclusive hold on the durable of one channel."""

    session: Session
    epoch: str
    """Epoch of the channel when the durable was opened."""
    hold: DurableHold
    acknowledged: int = 0
    """All events before this id are acknowledged."""


class Bound:
    """A durable of the same name on each channel, held while the query runs."""

    def __init__(self, options: SourceOptions) -> None:
        if options.starting.otherwise is not None or options.starting.named:
            raise InvalidArgument(
                f"durable {options.durable} decides where the stream begins, at its first "
                f"unacknowledged event; leave out "
                "startingOffsets and startingTimestamp, or create "
                "a durable that starts where you want"
            )
        self._options = options
        self._held: dict[str, _HeldDurable] = {}

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the holds: Spark pickles the object for tasks, which only
        read."""
        return {**self.__dict__, "_held": {}}

    def first(self, session: Session, link: ChannelLink) -> int:
        self._hold(session, link)  # from now on, other readers get no events
        # The end is read before the outstanding ids: an event published in between is either
        # outstanding or follows the end, so none is skipped.
        end = link.end
        lowest = durable_of(self._options, link).outstanding().id_set.lowest
        return end if lowest is None else lowest

    def acknowledge(self, session: Session, links: Links, committed: Positions) -> None:
        for name, position in committed.items():
            link = links.get(name)
            if link is None or link.epoch != position.epoch:
                continue  # the channel is deleted or recreated; `resolve_positions` reports that
            held_durable = self._hold(session, link)
            if held_durable.acknowledged < position.event_id:
                held_durable.hold.ack(position.event_id - 1)
                held_durable.acknowledged = position.event_id

    def take(
        self, session: Session, links: Links, spans: Mapping[str, Span]
    ) -> OutstandingIds | None:
        outstanding_ids = {}
        for name, span in spans.items():
            if span.size > 0:
                hold = self._hold(session, links[name]).hold
                outstanding_ids[name] = hold.take(span.first, span.end - 1).id_set
        return outstanding_ids

    def commit(self, committed: Positions) -> None:
        def acknowledge(session: Session) -> None:
            self.acknowledge(session, links_of(session, self._options), committed)

        with suppress(PenstockError):  # the next call acknowledges the same position
            ask_realm(self._options.realm, acknowledge)

    def _hold(self, session: Session, link: ChannelLink) -> _HeldDurable:
        """Return the hold on the channel's durable; open it if necessary. Raises as
        :func:`hold_durable`."""
        held_durable = self._held.get(link.name)
        # A new session means that the old one, and its holds, ended. A new epoch means that the
        # channel was recreated, with another durable.
        if (
            held_durable is None
            or held_durable.session is not session
            or held_durable.epoch != link.epoch
        ):
            hold = hold_durable(self._options, link)
            held_durable = self._held[link.name] = _HeldDurable(session, link.epoch, hold)
        return held_durable


def _open_with_retries(durable: Durable, channel: str, attempts: int) -> DurableHold:
    """Open the durable exclusively; while it is in use, retry ``attempts`` times. Then raise
    ``DurableInUse``."""
    pause = threading.Event()
    hold = durable.hold()
    # The realm frees a killed query's durable only when its connection ends.
    for _ in range(attempts):
        with suppress(DurableInUse):
            return hold.open()
        pause.wait(OPEN_RETRY_S)
    try:
        return hold.open()
    except DurableInUse as error:
        raise DurableInUse(
            f"durable {durable.name} of channel {channel} is in use, and a query needs exclusive "
            f"use of its durable: stop the other query, or give this one another durable "
            f"({error})"
        ) from error


def hold_durable(options: SourceOptions, link: ChannelLink) -> DurableHold:
    """Open the durable of one channel exclusively. The caller closes the returned hold.

    Raises the errors of :func:`durable_of`, and ``DurableInUse``.
    """
    return _open_with_retries(durable_of(options, link), link.name, options.durable_attempts)


def durable_of(options: SourceOptions, link: ChannelLink) -> Durable:
    """Return the durable named by ``options`` on one of the channels to read.

    Raises ``NameDoesNotExist``, whose text shows how to create the durable, and ``IllegalState`` if
    the durable's selector differs from that of the options.
    """
    name, channel = options.durable, link.name
    durable = existing_durable(link.channel, name)
    info = durable.info()
    if options.selector not in ("", info.selector) and info.type not in WITHOUT_SELECTOR:
        selector = f"selector {info.selector!r}" if info.selector else "no selector"
        raise IllegalState(
            f"durable {name} of channel {channel} is {info.type} and has {selector}, which decides "
            f"what it keeps, but the option selector is {options.selector!r}: leave the option "
            f"out, or create a durable with that selector"
        )
    return durable


def outstanding_events(
    options: SourceOptions, links: Links, spans: Mapping[str, Span]
) -> OutstandingIds | None:
    """Return the ids in ``spans`` that are outstanding at the durable; None without a durable.

    A batch read uses these ids; it leaves the events outstanding.
    """
    if not options.durable:
        return None
    return {
        name: durable_of(options, links[name]).outstanding(span.first, span.end - 1).id_set
        for name, span in spans.items()
        if span.size > 0
    }


# --- restriction of tasks to outstanding events -------------------------------------------


def restrict_location(location: Location, outstanding_ids: IdSet) -> Location:
    """Return the location without events that are not outstanding."""
    sealed = []
    for part in location.sealed:
        spans = outstanding_ids.overlap(IdSet(part.spans)).spans
        if spans:
            sealed.append(msgspec.structs.replace(part, spans=spans))
    tail = outstanding_ids.overlap(IdSet(location.tail)).spans
    return Location(tuple(sealed), tail, location.files)


def restrict_partition(partition: EventRange, outstanding_ids: IdSet) -> EventRange:
    """Return the partition without the events that are not outstanding."""
    span = partition.span
    ids_of_partition = outstanding_ids.within(span)
    if len(ids_of_partition) == span.size:
        return partition
    return dataclasses.replace(partition, outstanding_ids=stored_form(ids_of_partition))


def mask_of(outstanding_ids: Ids, batch: pa.RecordBatch) -> pa.BooleanArray:
    """Return a mask that is true for the events of ``batch`` that are outstanding."""
    # Starts and ends of ranges alternate in `edges`: an id inside a range has an odd number of
    # edges at or below it.
    edges = np.array(ranges(outstanding_ids), dtype=np.int64).reshape(-1)
    return pa.array(np.searchsorted(edges, ids_of(batch), side="right") % 2 == 1)

"""Requests about durables: create, describe, purge and move them, and list outstanding events."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct
from msgspec.structs import force_setattr

from penstock_core.api.requests import Request
from penstock_core.bounds import (
    ENTRIES_MAX,
    Count,
    EndId,
    EventId,
    GivenName,
    LastId,
    Name,
    SelectorText,
)
from penstock_core.display import html_info, safe_html
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.delivery_runs import (
    DEAD,
    OUTSTANDING,
    DeliveryPlace,
    DeliveryRun,
    EventState,
)
from penstock_core.vocabulary.durable_attributes import DurableAttributes, GivenDurableAttributes
from penstock_core.vocabulary.identities import ChannelNumber
from penstock_core.vocabulary.start_positions import AnyStart
from penstock_core.vocabulary.stored_ids import Ids, id_set


class _Described(DurableAttributes, frozen=True):
    """The fields of a durable's description that precede its attributes."""

    name: str
    channel: str
    type: str
    persistent: bool
    selector: str
    clients: tuple[str, ...]
    """Sessions that are attached, in the order of their subscriptions."""
    position: int
    """Id below which all events have been offered or settled."""
    outstanding: int
    """Number of events that are not acknowledged."""
    pending: int
    """Deprecated name of ``in_flight``."""
    redelivered: int
    """Number of outstanding events that have already been delivered."""
    oldest_outstanding_ms: int | None
    """Age of the oldest outstanding event in milliseconds; None if no event is outstanding."""
    last_read_ms: int | None
    """Milliseconds since a client last got or settled events; None if no client did so since the
    realm started."""


class DurableInfo(_Described, frozen=True, kw_only=True):
    """The description of a durable (SEM D17)."""

    in_flight: int = -1
    """Number of outstanding events that a client holds: delivered and not acknowledged."""
    waiting: int = 0
    """Number of outstanding events that are delayed after a rollback."""
    waiting_until_us: int | None = None
    """Earliest redelivery of a waiting event, in microseconds since 1970; None if no event
    waits."""
    deprecated: bool = False
    """Whether the durable's type works, but should not be used for new durables."""

    def __post_init__(self) -> None:
        if self.in_flight < 0:  # an older realm answered
            force_setattr(self, "in_flight", self.pending)

    @property
    def ready(self) -> int:
        """Number of outstanding events that no client holds and that are not delayed."""
        return max(0, self.outstanding - self.in_flight - self.waiting)

    @safe_html
    def _repr_html_(self) -> str:
        return html_info(self)


class Outstanding(Struct, frozen=True):
    """Ids of the outstanding events of a durable."""

    ids: Ids
    redeliveries: tuple[tuple[int, Ids], ...] = ()
    """Redelivery counts above zero, with the ids that have them."""
    waiting: tuple[tuple[int, Ids], ...] = ()
    """Ends of delays, in microseconds since 1970, with the delayed ids (SEM D18)."""

    @property
    def id_set(self) -> IdSet:
        return id_set(self.ids)

    @property
    def redelivered(self) -> dict[int, IdSet]:
        """The ids that were delivered again, by redelivery count."""
        return {count: id_set(ids) for count, ids in self.redeliveries}

    @property
    def waits(self) -> dict[int, IdSet]:
        """The ids that are delayed after a rollback, by the end of the delay."""
        return {until_us: id_set(ids) for until_us, ids in self.waiting}


class CreateDurable(GivenDurableAttributes, Request[DurableInfo], frozen=True):
    """Create a durable on a channel."""

    channel: ChannelNumber
    name: GivenName
    kind: Name
    """Name of the durable's type."""
    start: AnyStart
    selector: SelectorText = ""
    persistent: bool | None = None
    """Whether the durable survives a restart; None means that it does if the channel's ids survive
    (SEM D3)."""


class DeleteDurable(Request[None], frozen=True):
    channel: ChannelNumber
    name: GivenName


class ListDurables(Request[list[DurableInfo]], frozen=True):
    channel: ChannelNumber


class DescribeDurable(Request[DurableInfo], frozen=True):
    channel: ChannelNumber
    name: GivenName


class PurgeDurable(Request[int], frozen=True):
    """Acknowledge outstanding events of one durable, without effect on other durables. The answer
    is the number of the events."""

    channel: ChannelNumber
    name: GivenName
    first_id: EventId | None
    last_id: LastId | None
    """The last id of the range, which is also acknowledged."""
    selector: SelectorText = ""


class CountDurablePurge(Request[int], frozen=True):
    """Count the events that :class:`PurgeDurable` would acknowledge, without acknowledging them."""

    channel: ChannelNumber
    name: GivenName
    first_id: EventId | None
    last_id: LastId | None
    selector: SelectorText = ""


class SeekOutcome(Struct, frozen=True):
    """The effect of a seek, or of its preview (SEM D20)."""

    position: int
    """The id at which the durable continues."""
    again: int
    """Number of events that become outstanding; they are delivered again, or for the first time."""
    skipped: int
    """Number of events that are not outstanding any more."""
    taken_back: int
    """Number of events that are taken back from clients."""
    outstanding: int
    """Number of events that are outstanding after the seek."""
    gone: dict[str, int] = {}
    """Numbers of events from ``position`` on that have left the channel, by cause."""


class SeekDurable(Request[SeekOutcome], frozen=True):
    """Let a durable continue from another position (SEM D20)."""

    channel: ChannelNumber
    name: GivenName
    to: AnyStart
    key: Name = ""
    """The client's name for this seek. A repetition with the same name, after a lost answer, gets
    the same answer and does not move the durable again. Empty if the client never repeats the
    seek."""


class PreviewSeek(Request[SeekOutcome], frozen=True):
    """Compute the effect of :class:`SeekDurable` without changing the durable."""

    channel: ChannelNumber
    name: GivenName
    to: AnyStart


class UnbindDurable(Request[int], frozen=True):
    """End all subscriptions of a durable (SEM D14); the answer is their number."""

    channel: ChannelNumber
    name: GivenName


class DeliveryPage(Struct, frozen=True):
    """A page of delivery states, by name of the durable and by event id (SEM D23)."""

    runs: tuple[DeliveryRun, ...]
    next: DeliveryPlace | None
    """Place at which the next page begins; None if this is the last page. A page may be short or
    empty although pages follow."""


class DescribeDelivery(Request[DeliveryPage], frozen=True):
    """Read who has the events of a channel's durables, or of a queue, without changing anything
    (SEM D23). With the state ``dead``, the request also reads the dead event store."""

    channel: ChannelNumber
    limit: Count
    """Maximum number of events on the page, counted for each durable; at least 1."""
    durable: GivenName | None = None
    """The only durable; None for all durables, or for the readers of a queue."""
    states: Annotated[tuple[EventState, ...], Meta(max_length=ENTRIES_MAX)] = OUTSTANDING
    """The states of the events to return."""
    next_durable: GivenName = ""
    first_id: EventId = 0
    among_dead: bool = False
    """With ``next_durable`` and ``first_id``, the place at which the page begins."""

    @property
    def place(self) -> DeliveryPlace:
        """The place at which the page begins."""
        return DeliveryPlace(self.next_durable, self.first_id, self.among_dead)

    @property
    def reads_dead(self) -> bool:
        """Whether the dead event store is read."""
        return DEAD in self.states or self.among_dead


class DescribeOutstanding(Request[Outstanding], frozen=True):
    """List the outstanding ids of a durable from ``first_id`` to below ``end_id``, without changing
    the durable."""

    channel: ChannelNumber
    name: GivenName
    first_id: EventId
    end_id: EndId

"""Durables: to create, describe and empty them, and what is outstanding at one."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import force_setattr

from penstock.api.requests import Request
from penstock.core.bounds import (
    Count,
    EndId,
    EventId,
    GivenName,
    LastId,
    Name,
    SelectorText,
)
from penstock.core.ids.ids import IdSet
from penstock.core.vocabulary.identities import ChannelNumber
from penstock.core.vocabulary.messages import Ids
from penstock.core.vocabulary.start_positions import AnyStart
from penstock.core.vocabulary.stored_ids import id_set


class DurableInfo(Struct, frozen=True, kw_only=True):
    """A durable as it stands (SEM D17)."""

    name: str
    channel: str
    type: str
    persistent: bool
    selector: str
    clients: tuple[str, ...]
    """Sessions attached, by subscription."""
    position: int
    """Events below this id have been offered or settled."""
    outstanding: int
    """Not acknowledged."""
    pending: int
    """Deprecated name of ``in_flight``."""
    redelivered: int
    """Outstanding events that were delivered before."""
    oldest_outstanding_ms: int | None
    """Age of the oldest outstanding event."""
    last_read_ms: int | None
    """How long ago a client last got or settled something; None: not since the realm started."""
    max_deliveries: int = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: str = ""
    in_flight: int = -1
    """Outstanding events a client has: delivered and not acknowledged."""

    def __post_init__(self) -> None:
        if self.in_flight < 0:  # the answer of an older realm
            force_setattr(self, "in_flight", self.pending)

    @property
    def ready(self) -> int:
        """Outstanding events that no client has."""
        return max(0, self.outstanding - self.in_flight)


class Outstanding(Struct, frozen=True):
    """Events a durable still has to see, by id."""

    ids: Ids
    redeliveries: tuple[tuple[int, Ids], ...] = ()
    """How often events were delivered again, with their ids."""

    @property
    def id_set(self) -> IdSet:
        return id_set(self.ids)

    @property
    def redelivered(self) -> dict[int, IdSet]:
        """By count: the events that were delivered again as often."""
        return {count: id_set(ids) for count, ids in self.redeliveries}


class CreateDurable(Request[DurableInfo], frozen=True):
    channel: ChannelNumber
    name: GivenName
    kind: Name
    start: AnyStart
    selector: SelectorText = ""
    persistent: bool | None = None
    max_deliveries: Count = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: Name = ""


class DeleteDurable(Request[None], frozen=True):
    channel: ChannelNumber
    name: GivenName


class ListDurables(Request[list[DurableInfo]], frozen=True):
    channel: ChannelNumber


class DescribeDurable(Request[DurableInfo], frozen=True):
    channel: ChannelNumber
    name: GivenName


class PurgeDurable(Request[int], frozen=True):
    """Take events off what is outstanding at a durable; the others keep them."""

    channel: ChannelNumber
    name: GivenName
    first_id: EventId | None
    last_id: LastId | None
    """Inclusive."""
    selector: SelectorText = ""


class CountDurablePurge(Request[int], frozen=True):
    """Count what :class:`PurgeDurable` would take off, and take nothing off."""

    channel: ChannelNumber
    name: GivenName
    first_id: EventId | None
    last_id: LastId | None
    selector: SelectorText = ""


class UnbindDurable(Request[int], frozen=True):
    """End all subscriptions of a durable (SEM D14); answered by how many there were."""

    channel: ChannelNumber
    name: GivenName


class DescribeOutstanding(Request[Outstanding], frozen=True):
    """What a durable still has to see of ``first_id`` up to ``end_id``; changes nothing."""

    channel: ChannelNumber
    name: GivenName
    first_id: EventId
    end_id: EndId

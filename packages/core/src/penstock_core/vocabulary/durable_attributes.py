"""Attributes of a durable besides its type, start and selector, and a durable as it is stored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock_core.bounds import REDELIVERIES_MAX, Count, Name
from penstock_core.vocabulary.backoff import DELAY_MS_MAX, Backoff
from penstock_core.vocabulary.seeks import LastSeek
from penstock_core.vocabulary.stored_ids import Ids


class DurableAttributes(Struct, frozen=True, kw_only=True):
    """The attributes of a durable that are handed on together, from a request to the answer.

    A new one goes to the end, with a default, and to the end of
    :class:`DurableState`; its bounds, if it needs any, go into
    :class:`GivenDurableAttributes`, and the largest value of a number into :data:`DURABLE_MAXIMA`.
    """

    max_deliveries: int = 0
    """Deliveries after which a rolled-back event is dead; 0 = no limit (SEM T10)."""
    cluster_wide: bool = False
    """Exists on every node of a cluster (SEM C5, N1); refused on a realm without one."""
    strict_order: bool = False
    """A rolled-back event comes before every later one, also before those already sent (SEM D11).
    Only types whose ``orders_strictly`` is true have it."""
    order_by: str = ""
    """The property whose values are lanes: each is kept in order for itself (SEM D11). Empty: none.
    Only types whose ``orders_strictly`` is true have it."""
    backoff: Backoff | None = None
    """How long rolled-back events wait before they come again; None: not at all (SEM D18). Only
    types that redeliver at once have it."""
    ack_timeout: int = 0
    """Milliseconds that a client may have an event in hand; 0: as long as it likes (SEM D19). Only
    types that redeliver at once have it."""


DURABLE_DEFAULTS: Final = DurableAttributes()
DURABLE_MAXIMA: Final[Mapping[str, int]] = {
    "max_deliveries": REDELIVERIES_MAX,
    "ack_timeout": DELAY_MS_MAX,
}
"""The largest value that a realm takes for a number."""


class GivenDurableAttributes(DurableAttributes, frozen=True, kw_only=True):
    """The attributes of a durable as a request has them, in the bounds of what comes from outside.
    Stored ones are not checked again."""

    max_deliveries: Count = 0
    order_by: Name = ""
    ack_timeout: Count = 0


class DurableState(Struct, frozen=True, array_like=True):
    """A durable as a snapshot keeps it: the order of its fields is stored, so that it has those of
    :class:`DurableAttributes` itself."""

    name: str
    kind: str
    selector: str
    persistent: bool
    head: int
    outstanding: Ids
    redelivered: tuple[tuple[int, Ids], ...]
    max_deliveries: int = 0
    cluster_wide: bool = False
    strict_order: bool = False
    order_by: str = ""
    rolled_back: Ids = ()
    """Given back and not settled since, where that does not come again at once."""
    backoff: Backoff | None = None
    waiting: tuple[tuple[int, Ids], ...] = ()
    """Given back and not to come again before a time, in microseconds, by that time."""
    ack_timeout: int = 0
    last_seek: LastSeek | None = None


def durable_attributes(source: DurableAttributes | DurableState) -> DurableAttributes:
    """The attributes of a durable in ``source``, and nothing else of it."""
    names = DurableAttributes.__struct_fields__
    return DurableAttributes(**{name: getattr(source, name) for name in names})

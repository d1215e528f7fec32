"""Attributes of a durable other than its type, start and selector, and the stored form of a
durable."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock_core.bounds import REDELIVERIES_MAX, Count, Name
from penstock_core.vocabulary.backoff import DELAY_MS_MAX, Backoff
from penstock_core.vocabulary.seeks import LastSeek
from penstock_core.vocabulary.stored_ids import Ids


class DurableAttributes(Struct, frozen=True, kw_only=True):
    """Attributes of a durable that are passed on together, from a request to the stored fact and
    the answer.

    Add a new attribute at the end, with a default, and at the end of :class:`DurableState`. Its
    bounds, if it needs any, go into :class:`GivenDurableAttributes`, and the largest value of a
    number into :data:`DURABLE_MAXIMA`.
    """

    max_deliveries: int = 0
    """Number of deliveries after which a rolled-back event is dead; 0 means no limit (SEM T10)."""
    cluster_wide: bool = False
    """Whether the durable exists on every node of a cluster (SEM C5, N1); refused on a realm
    without a cluster."""
    strict_order: bool = False
    """Whether a rolled-back event is redelivered before every later one, also before those already
    sent (SEM D11). Only types whose ``orders_strictly`` is true have this attribute."""
    order_by: str = ""
    """The property whose values are lanes; order is kept within each lane (SEM D11). An empty name
    means no lanes. Only types whose ``orders_strictly`` is true have this attribute."""
    backoff: Backoff | None = None
    """Delays of rolled-back events; None means that they are redelivered without delay (SEM D18).
    Only types that redeliver immediately have this attribute."""
    ack_timeout: int = 0
    """Longest time that a client may hold an event, in milliseconds; 0 means no limit (SEM D19).
    Only types that redeliver immediately have this attribute."""


DURABLE_DEFAULTS: Final = DurableAttributes()
DURABLE_MAXIMA: Final[Mapping[str, int]] = {
    "max_deliveries": REDELIVERIES_MAX,
    "ack_timeout": DELAY_MS_MAX,
}
"""Largest allowed value of each number."""


class GivenDurableAttributes(DurableAttributes, frozen=True, kw_only=True):
    """Attributes of a durable in a request, with bounds for outside values. Stored attributes are
    not checked again."""

    max_deliveries: Count = 0
    order_by: Name = ""
    ack_timeout: Count = 0


class DurableState(Struct, frozen=True, array_like=True):
    """A durable as a snapshot keeps it. The order of its fields is a stored format, so it repeats
    the fields of :class:`DurableAttributes` instead of inheriting them."""

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
    """Events rolled back and not settled since, at types that do not redeliver immediately."""
    backoff: Backoff | None = None
    waiting: tuple[tuple[int, Ids], ...] = ()
    """Ends of delays after a rollback, as microseconds since 1970, each with the delayed events."""
    ack_timeout: int = 0
    last_seek: LastSeek | None = None


def durable_attributes(source: DurableAttributes | DurableState) -> DurableAttributes:
    """Return only the attributes of a durable that ``source`` contains."""
    names = DurableAttributes.__struct_fields__
    return DurableAttributes(**{name: getattr(source, name) for name in names})

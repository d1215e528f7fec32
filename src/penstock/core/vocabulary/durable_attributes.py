"""What a durable is told when it is made, besides its type, start and selector."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

from penstock.core.bounds import REDELIVERIES_MAX, Count, Name
from penstock.core.vocabulary.backoff import DELAY_MS_MAX, Backoff


class DurableAttributes(Struct, frozen=True, kw_only=True):
    """The attributes of a durable that are handed on together, from a request to the answer.

    A new one goes to the end, with a default, and to the end of ``DurableState``
    (``core.vocabulary.messages``); its bounds, if it needs any, go into
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

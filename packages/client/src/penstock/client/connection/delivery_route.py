"""What a connection calls for one subscription, seat or watch of its client."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire


def _ignore(*_: Any) -> None:
    """The default of calls that do not concern every subscription."""


class DeliveryRoute(Struct, frozen=True, kw_only=True):
    """The calls for one subscription, seat or watch."""

    reopen: Callable[[], Awaitable[None]]
    """Called when there is a new connection, on which it has to be requested again."""
    failed: Callable[[PenstockError], None]
    """Called when the realm or the session ends it."""
    delivered: Callable[[wire.Delivery, pa.Schema, memoryview], None] = _ignore
    finished: Callable[[], None] = _ignore
    """Called when a browse is at its end, or a demand is met."""
    recalled: Callable[[Spans], None] = _ignore
    """Called with events that the realm takes back after delivery."""
    hurry: Callable[[], None] = _ignore
    """Called to send pending settlements at once, because nothing is sent after this turn."""
    lost: Callable[[], None] = _ignore
    """Called when the connection is lost; by default the client keeps what has come."""
    found: Callable[[tuple[ChannelOpened, ...]], None] = _ignore
    """Called with new channels of a watched pattern."""

"""The functions that a connection calls for one subscription, seat or watch."""

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
    """Do nothing. Default of the functions that some subscriptions do not need."""


class DeliveryRoute(Struct, frozen=True, kw_only=True):
    """The functions that a connection calls for one subscription, seat or watch."""

    reopen: Callable[[], Awaitable[None]]
    """Called after a reconnect, to request the subscription again."""
    failed: Callable[[PenstockError], None]
    """Called when the realm or the session ends the subscription."""
    delivered: Callable[[wire.Delivery, pa.Schema, memoryview], None] = _ignore
    """Called with a delivery, the schema of its events, and the events as bytes."""
    finished: Callable[[], None] = _ignore
    """Called at the end of a browse, and when the events of a fetch have been delivered."""
    recalled: Callable[[Spans], None] = _ignore
    """Called with events that the realm recalls after their delivery."""
    hurry: Callable[[], None] = _ignore
    """Called to send pending settlements now, because the connection is about to be closed."""
    lost: Callable[[], None] = _ignore
    """Called when the connection is lost; by default the client keeps received events."""
    channels_found: Callable[[tuple[ChannelOpened, ...]], None] = _ignore
    """Called with new channels of a watched pattern."""

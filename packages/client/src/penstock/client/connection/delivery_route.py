"""Who receives what comes over a connection for one subscription."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pyarrow as pa
from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.ids.ids import Spans
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.wire.native import messages as wire


class DeliveryRoute(Struct, frozen=True):
    """The receiver of what comes for one subscription or seat."""

    delivered: Callable[[wire.Delivery, pa.Schema, memoryview], None]
    finished: Callable[[], None]
    """A browse is at its end, or a demand is met."""
    failed: Callable[[PenstockError], None]
    reopen: Callable[[], Awaitable[None]]
    """Called when there is a new connection, on which it has to be opened again."""
    recalled: Callable[[Spans], None] | None = None
    """Called with events that the realm recalls after delivery; None: it never does."""
    hurry: Callable[[], None] | None = None
    """Sends pending settlements at once, because nothing is sent after this turn; None: there are
    none."""
    lost: Callable[[], None] | None = None
    """Called when the connection is lost; None: what has come stays with the client."""
    found: Callable[[tuple[ChannelOpened, ...]], None] | None = None
    """Called with channels of the pattern that is watched; None: none is."""

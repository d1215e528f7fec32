"""What receivers say of deliveries, and what senders say they belong to, in Proton's objects."""

from __future__ import annotations

from typing import Any, Final

from cproton_ffi import lib as pn
from proton import Delivery, Described

ACCEPTED: Final[int] = pn.PN_ACCEPTED
REJECTED: Final[int] = pn.PN_REJECTED
RELEASED: Final[int] = pn.PN_RELEASED
MODIFIED: Final[int] = pn.PN_MODIFIED
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34


Pointer = Any
"""A C pointer of Proton's."""


class Outcome:
    """What a receiver says of a delivery, besides that it is accepted."""

    __slots__ = (
        "delivery",
        "event_id",
        "failed",
        "reason",
        "state",
        "transaction",
        "undeliverable",
    )

    def __init__(self, event_id: int, delivery: Pointer, state: int) -> None:
        self.event_id = event_id
        self.delivery = delivery
        self.state = state
        """One of the outcomes; 0 where it was settled without one."""
        self.failed = False
        self.undeliverable = False
        self.reason = ""
        self.transaction: bytes | None = None


def transaction_of(delivery: Delivery) -> bytes | None:
    data = delivery.remote.data
    return bytes(data[0]) if data and isinstance(data[0], bytes | memoryview) else None


def describe(outcome: Outcome, delivery: Delivery) -> None:
    """Fill in what was said besides the state."""
    found = delivery.remote
    if outcome.state == TRANSACTIONAL:
        data = found.data or []
        outcome.transaction = bytes(data[0]) if data else b""
        inner = data[1] if len(data) > 1 else None
        outcome.state = 0
        if isinstance(inner, Described):
            outcome.state = _code(inner.descriptor)
            values = list(inner.value) if isinstance(inner.value, list | tuple) else []
            if outcome.state == MODIFIED:
                failed, undeliverable, *_ = [*values, None, None]
                outcome.failed, outcome.undeliverable = bool(failed), bool(undeliverable)
    elif outcome.state == MODIFIED:
        outcome.failed, outcome.undeliverable = bool(found.failed), bool(found.undeliverable)
    elif outcome.state == REJECTED and found.condition is not None:
        outcome.reason = f"{found.condition.name}: {found.condition.description or ''}"[:2_000]


_OUTCOMES: Final = {
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
}


def _code(descriptor: Any) -> int:
    if isinstance(descriptor, str):
        return _OUTCOMES.get(str(descriptor), 0)
    return int(descriptor)

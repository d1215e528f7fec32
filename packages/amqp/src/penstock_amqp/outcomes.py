"""Reads outcomes and transaction ids from the delivery states that Proton reports."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from cproton_ffi import lib as pn
from proton import Delivery, Described, ProtonException

from penstock_amqp.modified import added_by, take_delivery_time
from penstock_core.vocabulary.errors import InvalidEvent

ACCEPTED: Final[int] = pn.PN_ACCEPTED
REJECTED: Final[int] = pn.PN_REJECTED
RELEASED: Final[int] = pn.PN_RELEASED
MODIFIED: Final[int] = pn.PN_MODIFIED
DECLARED: Final = 0x33
TRANSACTIONAL: Final = 0x34

UNREADABLE: Final = (ProtonException, ArithmeticError, LookupError, TypeError, ValueError)
"""Exceptions that Proton raises for values that it has accepted but cannot decode."""

Pointer = Any
"""A pointer to a C object of Proton."""


class Outcome:
    """The outcome of a delivery, if it is not a plain ``accepted``."""

    __slots__ = (
        "added",
        "delivery",
        "delivery_time_ms",
        "event_id",
        "failed",
        "fault",
        "reason",
        "state",
        "transaction",
        "undeliverable",
    )

    def __init__(self, event_id: int, delivery: Pointer, state: int) -> None:
        self.event_id = event_id
        self.delivery = delivery
        self.state = state
        """Code of the outcome; 0 if the delivery was settled without an outcome."""
        self.failed = False
        """Whether the delivery counts as failed, which raises the redelivery count."""
        self.undeliverable = False
        """Whether the event must not be delivered to this client again."""
        self.reason = ""
        """The client's reason for a rejection: condition and description."""
        self.fault = ""
        """Error text if the outcome is invalid; it ends the link."""
        self.added: dict[Any, bytes] = {}
        """Annotations to add to the message's later deliveries."""
        self.delivery_time_ms: int | None = None
        """Redelivery time that the client asks for, in milliseconds since 1970."""
        self.transaction: bytes | None = None
        """Id of the transaction that the outcome belongs to; None without one."""


def transaction_of(delivery: Delivery) -> bytes | None:
    """Return the transaction id in a delivery's state; None without one."""
    return _transaction_id_in(_transactional_fields(delivery))


def _transactional_fields(delivery: Delivery) -> Sequence[Any]:
    """Return the fields of a transactional state; empty for any other state."""
    try:
        data = delivery.remote.data
    except UNREADABLE:
        return ()
    return data if isinstance(data, list | tuple) else ()


def _transaction_id_in(fields: Sequence[Any]) -> bytes | None:
    # A number must not get here: ``bytes(n)`` would allocate that many zeros.
    return bytes(fields[0]) if fields and isinstance(fields[0], bytes | memoryview) else None


def describe(outcome: Outcome, delivery: Delivery) -> None:
    """Fill in the outcome's details from the delivery's remote state."""
    disposition = delivery.remote
    if outcome.state == TRANSACTIONAL:
        data = _transactional_fields(delivery)
        outcome.transaction = _transaction_id_in(data) or b""
        outcome_value = data[1] if len(data) > 1 else None
        outcome.state = 0
        if isinstance(outcome_value, Described):
            outcome.state = _outcome_code(outcome_value.descriptor)
            values = (
                list(outcome_value.value) if isinstance(outcome_value.value, list | tuple) else []
            )
            if outcome.state == MODIFIED:
                failed, undeliverable, annotations, *_ = [*values, None, None, None]
                outcome.failed, outcome.undeliverable = bool(failed), bool(undeliverable)
                _set_annotations(outcome, added_by(annotations))
    elif outcome.state == MODIFIED:
        outcome.failed, outcome.undeliverable = (
            bool(disposition.failed),
            bool(disposition.undeliverable),
        )
        _set_annotations(outcome, _annotations_in(disposition))
    elif outcome.state == REJECTED:
        outcome.reason = _reason_in(disposition)


def _set_annotations(outcome: Outcome, added: dict[Any, bytes]) -> None:
    """Store the annotations that the client adds to a message, and its redelivery time."""
    outcome.added = added
    try:
        outcome.delivery_time_ms = take_delivery_time(added)
    except InvalidEvent as error:
        outcome.fault = str(error)


def _annotations_in(disposition: Any) -> dict[Any, bytes]:
    """Return the annotations of a modified outcome; empty if they cannot be decoded."""
    try:
        return added_by(disposition.annotations)
    except UNREADABLE:
        return {}


def _reason_in(disposition: Any) -> str:
    """Return the condition and description of a rejection as text; empty if they cannot be
    decoded."""
    try:
        condition = disposition.condition
    except UNREADABLE:
        return ""
    return "" if condition is None else f"{condition.name}: {condition.description or ''}"[:2_000]


_OUTCOME_CODES: Final = {
    "amqp:accepted:list": ACCEPTED,
    "amqp:rejected:list": REJECTED,
    "amqp:released:list": RELEASED,
    "amqp:modified:list": MODIFIED,
}


def _outcome_code(descriptor: Any) -> int:
    """Return the code of an outcome that is named by a symbol or a number; 0 if unknown."""
    if isinstance(descriptor, str):
        return _OUTCOME_CODES.get(str(descriptor), 0)
    return int(descriptor) if isinstance(descriptor, int) else 0

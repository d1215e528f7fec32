"""Limits for AMQP clients."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from penstock_amqp.kept_messages import KEPT_BYTES_MAX, USER_KEPT_BYTES_MAX

LINKS_MAX: Final = 1_000
UNSETTLED_MAX: Final = 100_000
PARTS_BYTES_MAX: Final = 64 << 20
TRANSACTIONS_MAX: Final = 100
TRANSACTION_BYTES_MAX: Final = 256 << 20
TICK_S_MAX: Final = 5.0


class AmqpLimits(Struct, frozen=True):
    credit: int = 2_000
    """Maximum credit of a link: messages that its sender may send before it waits for more."""
    links_max: int = LINKS_MAX
    """Maximum open links of one connection."""
    unsettled_max: int = UNSETTLED_MAX
    """Maximum unsettled deliveries of a link; its receiver gets no more until it settles some."""
    parts_bytes_max: int = PARTS_BYTES_MAX
    """Maximum bytes of unfinished messages of one connection; a single message may be larger."""
    transactions_max: int = TRANSACTIONS_MAX
    """Maximum open transactions of one connection."""
    transaction_bytes_max: int = TRANSACTION_BYTES_MAX
    """Maximum bytes of messages in the open transactions of one connection."""
    kept_bytes_max: int = KEPT_BYTES_MAX
    user_kept_bytes_max: int = USER_KEPT_BYTES_MAX
    tick_s_max: float = TICK_S_MAX
    """Maximum seconds between two checks for timeouts."""

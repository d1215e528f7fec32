"""The ends of links, as the engine keeps them: what has come by them, and what waits."""

from __future__ import annotations

from cproton_ffi import lib as pn
from proton import Link

from penstock.frontends.amqp.outcomes import Outcome, Pointer


class Incoming:
    """A link by which messages come."""

    def __init__(self, link: Link, *, credit: int, message_bytes_max: int) -> None:
        self.link = link
        self.pointer: Pointer = link._impl
        self.credit_max = credit
        self.message_bytes_max = message_bytes_max
        self.messages: list[bytes] = []
        """Messages of this read with their deliveries; the delivery is None if the sender has
        settled it."""
        self.deliveries: list[Pointer | None] = []
        self.transactions: dict[int, bytes | None] = {}
        """Transactions of the messages that belong to one, by index in the list of messages."""
        self.parts = bytearray()
        """The parts of a message that is not complete."""
        self.takes_rejections = True
        """Whether the sender knows what it means that a message is rejected."""
        self.is_over = False
        self.is_wanted = True
        self.is_freed = False
        self.unanswered = 0
        """Deliveries somebody still has to settle."""


class Outgoing:
    """A link by which messages go out."""

    def __init__(self, link: Link, *, settled: bool) -> None:
        self.link = link
        self.pointer: Pointer = link._impl
        self.settled = settled
        """Whether what is sent is settled with that."""
        self.message_bytes_max: int = link.remote_max_message_size or 1 << 63
        """The largest message the receiver takes."""
        self.accepted: list[int] = []
        """Deliveries that were accepted and settled in this read."""
        self.outcomes: list[Outcome] = []
        self.has_flow = False
        self.is_over = False
        self.is_wanted = True
        self.is_freed = False
        self.unanswered = 0
        """Deliveries of which the realm has to say still that they are settled."""
        self.deciding: set[int] = set()
        """Deliveries with an outcome nobody has forgotten yet; whatever is said of them more
        changes nothing, and their pointers are used once."""

    @property
    def credit(self) -> int:
        """How many messages the peer would still take; below 0: some wait for it."""
        credit: int = 0 if self.is_over else pn.pn_link_credit(self.pointer)
        return credit

    @property
    def unsettled(self) -> int:
        """How many deliveries are with the peer, or on their way to it, and not settled."""
        count: int = 0 if self.is_over else pn.pn_link_unsettled(self.pointer)
        return count

    @property
    def is_draining(self) -> bool:
        """Whether the peer wants what there is now, and its credit back."""
        draining: bool = not self.is_over and pn.pn_link_get_drain(self.pointer)
        return draining

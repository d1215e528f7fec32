"""The two kinds of links as the engine sees them: with messages that have come, and deliveries."""

from __future__ import annotations

from cproton_ffi import lib as pn
from proton import Link

from penstock_amqp.kept import kept
from penstock_amqp.outcomes import Outcome, Pointer


class IncomingLink:
    """A link by which messages come."""

    def __init__(self, link: Link, *, credit: int, message_bytes_max: int) -> None:
        self.link = kept(link)
        self.pointer: Pointer = link._impl
        self.credit_max = credit
        self.message_bytes_max = message_bytes_max
        self.messages: list[bytes] = []
        """Complete messages of this read, with their deliveries in the list beside; None for a
        delivery that its sender has settled."""
        self.deliveries: list[Pointer | None] = []
        self.transactions: dict[int, bytes | None] = {}
        """The transaction of messages that belong to one, by index in ``messages``."""
        self.parts = bytearray()
        """Parts of a message that is not complete."""
        self.takes_rejections = True
        """Whether the sender accepts the outcome ``rejected``."""
        self.takes_releases = True
        """Whether the sender accepts the outcome ``released``."""
        self.is_over = False
        self.is_wanted = True
        self.is_freed = False
        self.unanswered = 0
        """Deliveries that the realm has not answered yet."""


class OutgoingLink:
    """A link by which messages go out."""

    def __init__(self, link: Link, *, settled: bool) -> None:
        self.link = kept(link)
        self.pointer: Pointer = link._impl
        self.settled = settled
        """Whether events are sent settled."""
        self.message_bytes_max: int = link.remote_max_message_size or 1 << 63
        """Largest message in bytes that the receiver accepts."""
        self.accepted: list[int] = []
        """Ids whose deliveries were accepted and settled in this read."""
        self.outcomes: list[Outcome] = []
        self.has_flow = False
        self.is_over = False
        self.is_wanted = True
        self.is_freed = False
        self.unanswered = 0
        """Deliveries whose outcome the realm has not confirmed yet."""
        self.deciding: set[int] = set()
        """Deliveries with an outcome that is being applied. A second outcome changes nothing, and
        each pointer is settled once."""

    @property
    def credit(self) -> int:
        """How many more messages the peer accepts; negative: so many wait for credit."""
        credit: int = 0 if self.is_over else pn.pn_link_credit(self.pointer)
        return credit

    @property
    def unsettled(self) -> int:
        """How many deliveries are sent, or about to be sent, and not settled."""
        count: int = 0 if self.is_over else pn.pn_link_unsettled(self.pointer)
        return count

    @property
    def is_draining(self) -> bool:
        """Whether the peer wants the events that are there now, and then its credit back."""
        draining: bool = not self.is_over and pn.pn_link_get_drain(self.pointer)
        return draining

"""The engine's state of incoming and outgoing links: messages, deliveries and credit."""

from __future__ import annotations

from cproton_ffi import lib as pn
from proton import Link

from penstock_amqp.kept import retain
from penstock_amqp.outcomes import Outcome, Pointer


class IncomingLink:
    """A link that receives messages."""

    def __init__(self, link: Link, *, credit: int, message_bytes_max: int) -> None:
        self.link = retain(link)
        self.pointer: Pointer = link._impl
        self.credit_max = credit
        self.message_bytes_max = message_bytes_max
        self.messages: list[bytes] = []
        """Complete messages of the current read."""
        self.deliveries: list[Pointer | None] = []
        """The delivery of each message in `messages`; None if its sender has settled it."""
        self.transactions: dict[int, bytes | None] = {}
        """Transaction ids of messages that belong to a transaction, by index in `messages`."""
        self.parts = bytearray()
        """The received part of an incomplete message."""
        self.takes_rejections = True
        """Whether the sender accepts the outcome ``rejected``."""
        self.takes_releases = True
        """Whether the sender accepts the outcome ``released``."""
        self.is_over = False
        self.is_wanted = True
        """False once no one uses the link. It is freed when its last delivery has been answered."""
        self.is_freed = False
        self.unanswered = 0
        """Deliveries that the realm has not answered yet."""


class OutgoingLink:
    """A link that sends messages."""

    def __init__(self, link: Link, *, settled: bool) -> None:
        self.link = retain(link)
        self.pointer: Pointer = link._impl
        self.settled = settled
        """Whether messages are sent settled."""
        self.message_bytes_max: int = link.remote_max_message_size or 1 << 63
        """Largest message in bytes that the receiver accepts."""
        self.accepted: list[int] = []
        """Event ids of the deliveries accepted and settled in the current read."""
        self.outcomes: list[Outcome] = []
        """The other outcomes of the current read."""
        self.has_flow = False
        """Whether the peer has sent a flow frame in the current read, possibly with credit."""
        self.is_over = False
        self.is_wanted = True
        self.is_freed = False
        self.unanswered = 0
        """Deliveries whose outcome the realm has not confirmed yet."""
        self.deciding: set[int] = set()
        """Deliveries whose outcome is being applied. A second outcome is ignored, and each pointer
        is settled once."""

    @property
    def credit(self) -> int:
        """Number of further messages that the peer accepts; negative if messages wait for
        credit."""
        credit: int = 0 if self.is_over else pn.pn_link_credit(self.pointer)
        return credit

    @property
    def unsettled(self) -> int:
        """Number of deliveries that are sent or queued, and not settled."""
        count: int = 0 if self.is_over else pn.pn_link_unsettled(self.pointer)
        return count

    @property
    def is_draining(self) -> bool:
        """Whether the peer wants the available events, and then its credit back."""
        draining: bool = not self.is_over and pn.pn_link_get_drain(self.pointer)
        return draining

"""Requests about request and reply: the queue that receives replies, and the destination of a reply
(SEM R)."""

from __future__ import annotations

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import GivenName, Name


class OpenReplyQueue(Request[ChannelOpened], frozen=True):
    """Create the reply queue of a session, or open it again after a reconnect (SEM R2).

    The client chooses its name: ``temp-reply-`` and 32 random hexadecimal digits.
    """

    name: Name


class OpenReplyTo(Request[ChannelOpened], frozen=True):
    """Open the reply destination of a request, to publish the reply (SEM R2)."""

    address: GivenName
    """The header ``reply_to`` of the request."""


class CloseReplyQueue(Request[None], frozen=True):
    """Remove the reply queue of a session that ends (SEM R3)."""

    name: Name

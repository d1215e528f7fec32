"""Requests about request and reply: the queue that replies come to, and where a reply goes
(SEM R)."""

from __future__ import annotations

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import GivenName, Name


class OpenReplyQueue(Request[ChannelOpened], frozen=True):
    """Create the reply queue of a session, or open it again after a reconnect (SEM R2).

    The client chooses its name: ``temp-reply-`` and 32 hexadecimal digits that nobody can guess.
    """

    name: Name


class OpenReplyTo(Request[ChannelOpened], frozen=True):
    """Open the channel or queue to which a request wants its reply, to publish there (SEM R2)."""

    address: GivenName
    """The header ``reply_to`` of the request."""


class CloseReplyQueue(Request[None], frozen=True):
    """Remove the reply queue of a session that ends (SEM R3)."""

    name: Name

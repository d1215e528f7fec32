"""Requests about channels by a pattern (SEM D21)."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.channels import ChannelOpened
from penstock.api.requests import Request
from penstock.core.bounds import GivenName, Number, Text


class ChannelsWatched(Struct, frozen=True):
    """The channels of a pattern that the client may read, as it begins to watch them."""

    next_channel: int
    """Channels of this number or a higher one are made later."""
    channels: tuple[ChannelOpened, ...]


class WatchChannels(Request[ChannelsWatched], frozen=True):
    """Find the channels of a pattern, and be told of those that are made later, or that the client
    may read from now on. An ``Unsubscribe`` with the same number ends it."""

    pattern: Text
    """Names and patterns between commas (:mod:`penstock.core.vocabulary.choice`)."""
    subscription: Number
    durable: GivenName = ""
    """Only channels that have a durable of this name; empty: all of them."""

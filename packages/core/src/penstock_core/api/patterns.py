"""Requests about channels by a pattern (SEM D21)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import GivenName, Name, Number, SelectorText, Text
from penstock_core.vocabulary.durable_attributes import DurableAttributes, GivenDurableAttributes
from penstock_core.vocabulary.start_positions import AnyStart


class ChannelsWatched(Struct, frozen=True):
    """The channels of a pattern that the client may read, as it begins to watch them."""

    next_channel: int
    """Channels of this number or a higher one are made later."""
    channels: tuple[ChannelOpened, ...]


class WatchChannels(Request[ChannelsWatched], frozen=True):
    """Find the channels of a pattern, and be told of those that are made later, or that the client
    may read from now on. An ``Unsubscribe`` with the same number ends it."""

    pattern: Text
    """Names and patterns between commas (:mod:`penstock_core.vocabulary.choice`)."""
    subscription: Number
    durable: GivenName = ""
    """Only channels that have a durable of this name; empty: all of them."""


class PatternDurableInfo(DurableAttributes, frozen=True, kw_only=True):
    """The description of a durable over a pattern (SEM D22)."""

    pattern: str
    name: str
    type: str
    selector: str
    persistent: bool | None
    """None: persistent on the channels whose events survive a restart."""
    channels: int
    """Number of channels that have the durable now."""


class CreatePatternDurable(GivenDurableAttributes, Request[PatternDurableInfo], frozen=True):
    """Give each channel of a pattern a durable of one name, also those that are made later."""

    pattern: Text
    name: GivenName
    kind: Name
    start: AnyStart
    """Start position on the existing channels."""
    selector: SelectorText = ""
    persistent: bool | None = None


class DeletePatternDurable(Request[None], frozen=True):
    """End a durable over a pattern, with the durables that it has made."""

    pattern: Text
    name: GivenName


class ListPatternDurables(Request[list[PatternDurableInfo]], frozen=True):
    pass

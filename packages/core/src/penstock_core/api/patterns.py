"""Requests about channels by a pattern (SEM D21)."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.requests import Request
from penstock_core.bounds import GivenName, Name, Number, SelectorText, Text
from penstock_core.vocabulary.durable_attributes import DurableAttributes, GivenDurableAttributes
from penstock_core.vocabulary.start_positions import AnyStart


class ChannelsWatched(Struct, frozen=True):
    """The channels of a pattern that the client may read when it begins to watch them."""

    next_channel: int
    """Channels created later have this number or a higher one."""
    channels: tuple[ChannelOpened, ...]


class WatchChannels(Request[ChannelsWatched], frozen=True):
    """Return the channels of a pattern. Afterwards report channels that are created, or that the
    client gets the right to read. An ``Unsubscribe`` with the same number ends the reports."""

    pattern: Text
    """Names and patterns, separated by commas (:mod:`penstock_core.vocabulary.choice`)."""
    subscription: Number
    durable: GivenName = ""
    """Name of a durable that the channels must have; empty for all channels."""


class PatternDurableInfo(DurableAttributes, frozen=True, kw_only=True):
    """The description of a durable over a pattern (SEM D22)."""

    pattern: str
    name: str
    type: str
    selector: str
    persistent: bool | None
    """Whether the durables survive a restart; None means that a durable does if the ids of its
    channel do."""
    channels: int
    """Number of channels that have the durable now."""


class CreatePatternDurable(GivenDurableAttributes, Request[PatternDurableInfo], frozen=True):
    """Create a durable with one name on each channel of a pattern, including channels created
    later."""

    pattern: Text
    name: GivenName
    kind: Name
    start: AnyStart
    """Start position on the existing channels."""
    selector: SelectorText = ""
    persistent: bool | None = None


class DeletePatternDurable(Request[None], frozen=True):
    """Delete a durable over a pattern, with the durables that it has created."""

    pattern: Text
    name: GivenName


class ListPatternDurables(Request[list[PatternDurableInfo]], frozen=True):
    pass

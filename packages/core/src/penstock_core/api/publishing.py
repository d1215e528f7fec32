"""Requests that publish: immediately, or in two steps with batches that are staged first.

The batches are in the frame's body; ``schema`` and ``sizes`` describe them.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from penstock_core.api.requests import Request
from penstock_core.api.transactions import TransactionInfo
from penstock_core.bounds import BATCHES_MAX, ENTRIES_MAX, Name, Number
from penstock_core.vocabulary.identities import ChannelNumber


class Published(Struct, frozen=True):
    """The ids of published events: ``count`` consecutive ids from ``first_id`` on."""

    first_id: int
    count: int


class PublishEvents(Request[Published], frozen=True):
    """Publish events. The body contains Arrow record batches of one schema, one after the other;
    ``sizes`` are their lengths in bytes.

    With a column ``deliver_at``, set in every row, the events are scheduled (SEM X4), and the
    answer has their numbers in the channel's schedule.
    """

    channel: ChannelNumber
    producer: Name
    sequence: Number
    schema: Number
    sizes: Annotated[tuple[Number, ...], Meta(max_length=BATCHES_MAX)]


class StageEvents(Request[None], frozen=True):
    """Stage batches on the server, to be published by :class:`CommitStages`."""

    channel: ChannelNumber
    stage: Name
    schema: Number
    sizes: Annotated[tuple[Number, ...], Meta(max_length=BATCHES_MAX)]


class CommitStages(Request[Published], frozen=True):
    """Publish staged batches, in the given order, in one step (SEM X1, X3)."""

    channel: ChannelNumber
    producer: Name
    sequence: Number
    stages: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)]


class DropStages(Request[None], frozen=True):
    """Drop staged batches that will not be published."""

    stages: Annotated[tuple[Name, ...], Meta(max_length=ENTRIES_MAX)]


class CommitStagedParts(Request[TransactionInfo], frozen=True):
    """Publish staged batches on several channels in one step. A repetition with the same producer
    and sequence publishes nothing and gets the same answer (SEM X3)."""

    producer: Name
    sequence: Number
    parts: Annotated[tuple[tuple[Number, tuple[Name, ...]], ...], Meta(max_length=ENTRIES_MAX)]
    """The channels, each with its stages in order."""

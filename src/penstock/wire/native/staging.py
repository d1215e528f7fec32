"""Headers of publishes in two steps: batches are put aside, then published."""

from __future__ import annotations

from penstock.wire.native.headers import Request


class StageEvents(Request, frozen=True, tag=21):
    """Put batches aside on the server, to be published by :class:`CommitStages`."""

    channel: int
    stage: str
    schema: int
    sizes: tuple[int, ...]


class CommitStages(Request, frozen=True, tag=22):
    """Publish staged batches, in the order given, in one step (SEM X1, X3)."""

    channel: int
    producer: str
    sequence: int
    stages: tuple[str, ...]


class DropStages(Request, frozen=True, tag=23):
    stages: tuple[str, ...]


class CommitStagedParts(Request, frozen=True, tag=29):
    """Publish staged batches of several channels, in one step and once in the realm (SEM X3)."""

    producer: str
    sequence: int
    parts: tuple[tuple[int, tuple[str, ...]], ...]
    """Channels, and their stages in order."""

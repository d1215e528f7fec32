"""The realm as a whole."""

from __future__ import annotations

from msgspec import Struct

from penstock.api.requests import Request


class RealmInfo(Struct, frozen=True, kw_only=True):
    name: str
    version: str
    channels: int
    connections: int
    journal_bytes: int
    memory_bytes: int
    memory_bytes_max: int
    off_heap_bytes: int = 0
    off_heap_bytes_max: int = 0
    paged_bytes: int = 0
    paged_bytes_max: int = 0
    queues: int = 0
    publishing_paused: bool = False


class DescribeRealm(Request[RealmInfo], frozen=True):
    pass


class PausePublishing(Request[None], frozen=True):
    """Refuse publishes and commits of clients, or take them again (SEM X5)."""

    paused: bool


class Ping(Request[None], frozen=True):
    pass

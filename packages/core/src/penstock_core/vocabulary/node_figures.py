"""Figures of the nodes of a cluster, which the owner of the realm shows with its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

SHARD: Final = 0
"""A cluster has one shard so far, which is the whole realm."""

Why = Literal["first", "released", "refused", "silent", "forced"]
"""Why a shard can be claimed: nobody ever has, its owner has released it, nobody is at the owner's
address, the owner has let its lease run out, or people want it to be taken by force."""
WHYS: Final[tuple[Why, ...]] = get_args(Why)


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a node's process, for its metrics."""

    process: Mapping[str, float] = {}
    """Processor time, memory and descriptors, under the names that Prometheus has for them."""
    relays: int = 0
    """Connections that it relays to the owner."""
    relays_opened: int = 0
    """Connections that it has relayed since it started."""
    epoch: int = 0
    """The epoch of the realm that it knows; 0: none."""
    takeovers: Mapping[Why, int] = {}
    """How often it has taken the realm over since it started, by why it could be claimed."""
    takeover_us: int = 0
    """How long the newest of them took: from its claim until everything was recovered."""
    deposed: int = 0
    """How often the realm was taken from it without having been handed over."""
    incidents: Mapping[str, int] = {}
    """How many incidents its background tasks have open, by task."""


class TenureCounts(msgspec.Struct):
    """What a process has lived through as a node, since it started."""

    claims: dict[Why, int]
    """How often it has taken the realm over, by why it could be claimed."""
    takeover_us: int = 0
    """How long the newest of them took: from its claim until everything was recovered."""
    deposed: int = 0
    """How often the realm was taken from it without having been handed over."""
    leader: str = ""
    """The engine's server that takes appends, as it was found last; empty: none is known."""
    room: int | None = None
    """Bytes that a majority of the engine's servers may still store, as reported last; None if too
    few servers have reported their room."""
    rooms: Mapping[str, int] = {}
    """Bytes that each server of the engine may still store, of the servers that reported it."""
    damages: set[str] = msgspec.field(default_factory=set)
    """The damage that was found on the engine's servers."""

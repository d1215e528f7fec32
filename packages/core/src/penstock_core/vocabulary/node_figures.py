"""Figures of the nodes of a cluster. The owner of the realm shows them together with the figures of
the realm."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, Literal, get_args

import msgspec

SHARD: Final = 0
"""The only shard of a cluster so far, which is the whole realm."""

Why = Literal["first", "released", "refused", "silent", "forced"]
"""Reason why a shard can be claimed: it never had an owner, its owner has released it, no process
answers at the owner's address, the owner's lease has expired, or an administrator forces a
takeover."""
WHYS: Final[tuple[Why, ...]] = get_args(Why)


class NodeFigures(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a node's process, for its metrics."""

    process: Mapping[str, float] = {}
    """Processor time, memory and descriptors, by their Prometheus names."""
    relays: int = 0
    """Connections that the node relays to the owner."""
    relays_opened: int = 0
    """Connections relayed since the node started."""
    epoch: int = 0
    """The epoch of the realm that the node knows of; 0 if it knows none."""
    takeovers: Mapping[Why, int] = {}
    """Takeovers of the realm by this node since it started, by reason."""
    takeover_us: int = 0
    """Duration of the newest takeover, from the claim to the end of recovery."""
    deposed: int = 0
    """Number of times that another node took over the realm without a handover."""
    incidents: Mapping[str, int] = {}
    """Number of open incidents of each background task of the node."""


class TenureCounts(msgspec.Struct):
    """Counts of takeovers and other occurrences in the life of a node, since its process started,
    and the state of the engine as the node saw it last."""

    claims: dict[Why, int]
    """Takeovers of the realm, by reason."""
    takeover_us: int = 0
    """Duration of the newest takeover, from the claim to the end of recovery."""
    deposed: int = 0
    """Number of times that another node took over the realm without a handover."""
    leader: str = ""
    """The engine's server that accepts appends, as seen last; empty if it is not known."""
    room: int | None = None
    """Bytes that a majority of the engine's servers may still store, as reported last; None if too
    few servers have reported their free bytes."""
    rooms: Mapping[str, int] = {}
    """Bytes that each server of the engine may still store; servers that did not report them are
    left out."""
    damages: set[str] = msgspec.field(default_factory=set)
    """Damage found on the engine's servers."""

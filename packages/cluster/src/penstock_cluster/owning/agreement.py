"""Compare the settings that must be equal on all nodes, and refuse claims of nodes that differ.

A realm is served with the settings of its owner. A node with other settings would let in clients
that the owner refuses, look for the realm's files elsewhere, or trust its lease for longer. So the
claim of a shard keeps the settings of the realm's last owner, and only two kinds of
nodes may claim it next: those with these settings, and those whose settings a majority of all nodes
shares. The second rule lets an operator change settings one node after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord

SettingTexts = Mapping[str, str]
"""Settings as text, by name. Names that only one of two versions knows are not compared."""

_SHOWN_MAX = 5
"""Maximum number of settings named in one message."""


def differing(own: SettingTexts, others: SettingTexts) -> list[str]:
    """Return the names of settings that both sides have with different values."""
    return sorted(name for name in own.keys() & others.keys() if own[name] != others[name])


def disagreement(
    member: MemberRecord, claim: ClaimRecord | None, members: Iterable[MemberRecord]
) -> str:
    """Return why a member's settings keep it from claiming a shard with this claim; empty if they
    do not. ``members`` are all nodes in the register."""
    if claim is None:
        return ""
    names = differing(member.settings, claim.settings)
    if not names:
        return ""
    others = [peer for peer in members if peer.node != member.node and not peer.removed]
    # The member itself is one of the nodes that agree, and one of those that are counted.
    agreeing = 1 + sum(not differing(member.settings, peer.settings) for peer in others)
    if 2 * agreeing > 1 + len(others):
        return ""
    differences = [
        f"{name} is {_quoted(member.settings[name])} at {member.node}, and was "
        f"{_quoted(claim.settings[name])} where the realm was served last"
        for name in names[:_SHOWN_MAX]
    ]
    more = f"; {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return (
        f"settings differ: {'; '.join(differences)}{more}. Give {member.node} the settings of "
        f"the others and start it again; to change them, restart one node after the other"
    )


def _quoted(value: str) -> str:
    return repr(value) if value else "not set"

"""Settings that all nodes of a cluster need to have alike, and who may own when they differ.

A realm is served with the settings of its owner. A node with others would let in clients that the
owner refuses, look for the realm's files elsewhere, or trust its lease for longer. So the claim of
a shard keeps the settings with which the realm was served last, and only two kinds of nodes may
claim it next: those with these settings, and those whose settings a majority of all nodes has. The
second is how settings are changed, one node after the other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord

SettingTexts = Mapping[str, str]
"""Settings as text, by name. A version may know names that another does not: these are not
compared."""

_SHOWN_MAX = 5
"""Settings that a message names."""


def differing(own: SettingTexts, others: SettingTexts) -> list[str]:
    """The names of settings that are known to both and have another value."""
    return sorted(name for name in own.keys() & others.keys() if own[name] != others[name])


def disagreement(
    member: MemberRecord, claim: ClaimRecord | None, members: Iterable[MemberRecord]
) -> str:
    """Why the settings of a member keep it from claiming a shard with this claim; empty: they do
    not. ``members`` are all nodes that the register knows."""
    if claim is None:
        return ""
    names = differing(member.settings, claim.settings)
    if not names:
        return ""
    others = [each for each in members if each.node != member.node and not each.removed]
    alike = 1 + sum(not differing(member.settings, each.settings) for each in others)
    if 2 * alike > 1 + len(others):
        return ""
    told = [
        f"{name} is {_shown(member.settings[name])} at {member.node}, and was "
        f"{_shown(claim.settings[name])} where the realm was served last"
        for name in names[:_SHOWN_MAX]
    ]
    more = f"; {len(names) - _SHOWN_MAX} more" if len(names) > _SHOWN_MAX else ""
    return (
        f"settings differ: {'; '.join(told)}{more}. Give {member.node} the settings of the others "
        f"and start it again; to change them, restart one node after the other"
    )


def _shown(value: str) -> str:
    return repr(value) if value else "not set"

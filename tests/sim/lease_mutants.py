"""Mistakes in leases of HTTP consumers; ``mutants.py`` lists them with all others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import pytest

from penstock_core.api.consuming import Settled, SettleLease, SettlePatternLease
from penstock_core.ids.ids import IdSet
from penstock_core.vocabulary.errors import LeaseEnded
from penstock_server.runtime.subscriptions import leases
from penstock_server.runtime.subscriptions.lease import LeasePart
from penstock_server.runtime.subscriptions.leases import Check, Leases, Settling, settle_events
from penstock_server.runtime.writer.group import Group
from tests.sim.born_mutants import missed_birth


def late_lease_taken(patch: pytest.MonkeyPatch) -> None:
    """Answer a late request as if it had been done."""
    original = Leases.settle

    async def settle(
        leases: Leases, request: SettleLease | SettlePatternLease, owner: str, check: Check
    ) -> Settled:
        try:
            return await original(leases, request, owner, check)
        except LeaseEnded:
            if isinstance(request, SettlePatternLease) or leases.find(request, owner) is None:
                raise
            return Settled(count=len(IdSet(request.chosen.spans or ())), left=0, ends_us=None)

    patch.setattr(Leases, "settle", settle)


def outlived_restart(patch: pytest.MonkeyPatch) -> None:
    """Take a lease of an earlier life of the realm for one of this life."""

    original = Leases.answer_without_lease

    async def settled(
        leases: Leases, request: SettleLease | SettlePatternLease, check: Check
    ) -> Settled:
        if isinstance(request, SettlePatternLease):
            return await original(leases, request, check)
        return Settled(count=len(IdSet(request.chosen.spans or ())), left=0, ends_us=None)

    patch.setattr(Leases, "answer_without_lease", settled)


def unremembered(patch: pytest.MonkeyPatch) -> None:
    """Take a repeated request for a new one."""
    original = LeasePart.selected_events

    def selected_events(part: LeasePart, *arguments: object) -> IdSet:
        ids = original(part, *arguments)  # type: ignore[arg-type]  # as it is called
        part.lost.add_all(ids.overlap(part.done["ack"]))
        part.done["ack"] = IdSet()
        return ids

    patch.setattr(LeasePart, "selected_events", selected_events)


def one_channel_forgotten(patch: pytest.MonkeyPatch) -> None:
    """Record an acknowledgement under a lease over a pattern for all channels, but acknowledge the
    events of only one."""

    def settle(group: Group, part: LeasePart, request: Settling, fresh: IdSet, held: IdSet) -> None:
        if part.channel_name.endswith("/1"):
            part.done[request.how].add_all(fresh)
        else:
            settle_events(group, part, request, fresh=fresh, seat_ids=held)

    patch.setattr(leases, "settle_events", settle)


LEASED: Final[dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]]] = {
    "late lease taken": ("a late acknowledgement under a lease is accepted", late_lease_taken),
    "outlived restart": ("a lease outlives its realm's restart", outlived_restart),
    "one channel forgotten": (
        "a lease over a pattern forgets one channel",
        one_channel_forgotten,
    ),
    "unheard birth": ("a wait over a pattern does not hear of new channels", missed_birth),
    "unremembered": ("an acknowledgement that is sent again is refused", unremembered),
}
"""Each with its description in the table of mistakes; the scene ``leased`` has to notice them."""

"""Mistakes about leases of HTTP consumers; ``mutants.py`` lists them with all others."""

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
    """What comes too late is answered as done."""
    whole = Leases.settle

    async def settle(
        own: Leases, asked: SettleLease | SettlePatternLease, owner: str, check: Check
    ) -> Settled:
        try:
            return await whole(own, asked, owner, check)
        except LeaseEnded:
            if isinstance(asked, SettlePatternLease) or own.find(asked, owner) is None:
                raise
            return Settled(count=len(IdSet(asked.chosen.spans or ())), left=0, ends_us=None)

    patch.setattr(Leases, "settle", settle)


def outlived_restart(patch: pytest.MonkeyPatch) -> None:
    """A lease of an earlier life of the realm is taken for one of this."""

    whole = Leases.answer_without_lease

    async def settled(
        own: Leases, asked: SettleLease | SettlePatternLease, check: Check
    ) -> Settled:
        if isinstance(asked, SettlePatternLease):
            return await whole(own, asked, check)
        return Settled(count=len(IdSet(asked.chosen.spans or ())), left=0, ends_us=None)

    patch.setattr(Leases, "answer_without_lease", settled)


def unremembered(patch: pytest.MonkeyPatch) -> None:
    """A request that is repeated is taken for another one."""
    whole = LeasePart.meant

    def meant(part: LeasePart, *asked: object) -> IdSet:
        found = whole(part, *asked)  # type: ignore[arg-type]  # as it is called
        part.lost.add_all(found.overlap(part.done["ack"]))
        part.done["ack"] = IdSet()
        return found

    patch.setattr(LeasePart, "meant", meant)


def one_channel_forgotten(patch: pytest.MonkeyPatch) -> None:
    """A lease over a pattern notes what is acknowledged, and acknowledges it on one channel."""

    def settle(group: Group, part: LeasePart, asked: Settling, fresh: IdSet, held: IdSet) -> None:
        if part.channel_name.endswith("/1"):
            part.done[asked.how].add_all(fresh)
        else:
            settle_events(group, part, asked, fresh=fresh, seat_ids=held)

    patch.setattr(leases, "settle_events", settle)


LEASED: Final[dict[str, tuple[str, Callable[[pytest.MonkeyPatch], None]]]] = {
    "late lease taken": ("a late acknowledgement under a lease is taken", late_lease_taken),
    "outlived restart": ("a lease outlives its realm's restart", outlived_restart),
    "one channel forgotten": (
        "a lease over a pattern forgets one channel",
        one_channel_forgotten,
    ),
    "unheard birth": ("a wait over a pattern does not hear of new channels", missed_birth),
    "unremembered": ("an acknowledgement that is sent again is refused", unremembered),
}
"""Each with what it is called in the table of mistakes; the scene ``leased`` is to notice."""

"""Seeks of durables to earlier and later positions, drawn at random, in a channel and its model."""

from __future__ import annotations

from random import Random

import pytest

from penstock_core.channel.seeking import preview
from penstock_core.ids.ids import IdSet
from penstock_core.messages.seeking import Seek
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import DurableInUse, IllegalState, InvalidArgument
from tests.model.compared import Compared


class Seeking(Compared):
    definition: Definition
    sought: int = 0
    """Counters for the keys of seek requests."""

    def seek(self, random: Random) -> None:
        """Draw a seek (SEM D20)."""
        if not self.model.durables:
            return
        name = random.choice(sorted(self.model.durables))
        self.settle_time()
        ledger, next_id = self.model.durables[name], self.play.channel.state.next_id
        start, is_exact = random.randint(0, next_id + 1), random.random() < 0.6
        if not is_exact:
            start = random.choice((min(self.model.stored, default=next_id), next_id))
        after = self.model.outstanding_from(ledger, start)
        self.sought += 1
        matched = IdSet.from_ids(after).spans if ledger.selector else ()
        command = Seek(name, start, matched, is_exact=is_exact, key=f"seek {self.sought}")
        if self.definition.kind == "queue":
            with pytest.raises(IllegalState, match="is a queue"):
                self.do(command)
        elif any(seat.sole for seat in self.model.seats_of(name).values()):
            with pytest.raises(DurableInUse, match="held as a whole"):
                self.do(command)
        elif is_exact and start != next_id and start not in self.model.stored:
            with pytest.raises((IllegalState, InvalidArgument), match=f"event {start} of life"):
                self.do(command)
        else:
            self.move(name, command, after)
            if random.random() < 0.3:  # the answer was lost, so the request is repeated
                self.do(command)

    def move(self, name: str, command: Seek, after: set[int]) -> None:
        due, held = self.model.durables[name].due, self.model.in_hands(name)
        preview_ = preview(self.play.channel.state, command)
        counts = (len(after - due), len(due - after), len(held), len(after))
        assert (
            preview_.again,
            preview_.skipped,
            preview_.taken_back,
            preview_.outstanding,
        ) == counts

        self.model.sought(name, command.start_id, after)
        self.do(command)

        last = self.play.channel.state.durables[name].last_seek
        assert (last.again, last.skipped, last.taken_back) == counts[:3]

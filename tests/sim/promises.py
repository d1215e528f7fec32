"""What clients were told, remembered outside the realm: it outlives every power cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock_core.ids.ids import Span


class Ledger:
    """The events of one store, as its publishers know them."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.offered: set[bytes] = set()
        """Every event ever sent."""
        self.confirmed: dict[tuple[str, int], Span] = {}
        """By producer and sequence."""
        self.content: dict[int, bytes] = {}
        """By id, of every event seen or confirmed."""
        self.lives: dict[int, int] = {}
        """By id: the life of the realm in which its publish was sent first."""
        self.unsure_lives: set[int] = set()
        """Ids whose publish was sent in several lives: any of them may have stored it."""
        self.doubtful: dict[str, tuple[bytes, ...]] = {}
        """By label, what was sent and never answered: all of it is stored, or none."""
        self.forgotten: set[bytes] = set()
        """What was sent again after its publisher had been silent for longer than a producer is
        remembered (SEM X3): it may be stored twice."""
        self.refused: set[bytes] = set()
        """What the realm has said it has not stored."""

    def is_content(self, event_id: int, data: bytes) -> None:
        assert data in self.offered, f"event {event_id} of {self.store} was never published"
        known = self.content.setdefault(event_id, data)
        assert known == data, f"id {event_id} of {self.store} was given to two events"

    def confirm(
        self, producer: str, sequence: int, span: Span, datas: Sequence[bytes], *, life: int = 0
    ) -> None:
        assert span.size == len(datas), f"{len(datas)} events got the ids {span}"
        self.confirmed[producer, sequence] = span
        for event_id, data in zip(range(*span), datas, strict=True):
            self.is_content(event_id, data)
            self.lives[event_id] = life
        earlier = self.confirmed.get((producer, sequence - 1))
        assert earlier is None or earlier.end <= span.first, "ids do not follow publish order"

    @property
    def ids(self) -> list[int]:
        """Ids of everything confirmed."""
        return sorted(self.lives)

    def holds(self, found: Sequence[tuple[int, bytes]]) -> None:
        """What was found is what was promised, all of it, once and in order."""
        ids = [event_id for event_id, _ in found]
        assert ids == self.ids, f"{self.ids} were promised on {self.store}; stored are {ids}"
        assert len({data for _, data in found}) == len(found), "an event is stored twice"
        for event_id, data in found:
            self.is_content(event_id, data)

    def accounts_for(self, found: Sequence[tuple[int, bytes]]) -> None:
        """What was found is what was promised, and some of what nobody was told about."""
        ids = [event_id for event_id, _ in found]
        datas = {data for _, data in found}
        once = [data for _, data in found if data not in self.forgotten]
        assert len(set(once)) == len(once), f"an event of {self.store} is stored twice"
        assert set(self.ids) <= set(ids), (
            f"{sorted(set(self.ids) - set(ids))} were promised on {self.store}, and are gone"
        )
        for event_id, data in found:
            self.is_content(event_id, data)
        assert not datas & self.refused, f"{datas & self.refused} were refused, and are stored"
        for label, parts in self.doubtful.items():
            there = datas & set(parts)
            assert len(there) in (0, len(parts)), f"of {label} there is {there}"
        known = {self.content[event_id] for event_id in self.lives}
        unknown = datas - known - {part for parts in self.doubtful.values() for part in parts}
        assert not unknown, f"nobody knows of {unknown} on {self.store}"


class Receipts:
    """What one durable, or the readers of one queue, got and settled."""

    def __init__(
        self, name: str, ledger: Ledger, *, counted: bool = True, remote: bool = False
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.counted = counted
        """Whether a rollback counts (SEM D, rollback)."""
        self.remote = remote
        """Whether a lost connection may count, too, with events nobody has seen (SEM D13)."""
        self.asked: dict[int, int] = {}
        """When each was acknowledged first, answered or not."""
        self.acked: dict[int, int] = {}
        """When that was answered."""
        self.seen: set[int] = set()
        self.comes_again: set[int] = set()
        """Given back where that comes with the next subscription, and not delivered since."""
        self._counts: dict[int, tuple[int, int]] = {}
        """Redeliveries at least and at most: a rollback nobody answered may have happened."""

    def delivered(
        self,
        ids: Sequence[int],
        datas: Sequence[bytes],
        counts: dict[int, int],
        *,
        stale: bool = False,
    ) -> None:
        """``stale``: it was under way as the realm gave up on who has got it now, and may have been
        given to others and be settled since."""
        for event_id, data in zip(ids, datas, strict=True):
            self.ledger.is_content(event_id, data)
            self.seen.add(event_id)
            self.comes_again.discard(event_id)
            if stale:
                continue
            assert event_id not in self.acked, (
                f"event {event_id} came again to {self.name} after its ack was answered"
            )
            least, most = self._counts.get(event_id, (0, 0))
            count = counts.get(event_id, 0)
            most = max(most, count) if self.remote and self.counted else most
            assert least <= count <= most, f"redelivery {count} of {event_id}, not {least}..{most}"
            self._counts[event_id] = (count, count)

    def asking(self, ids: Iterable[int], now_us: int) -> None:
        for event_id in ids:
            self.asked.setdefault(event_id, now_us)

    def answered(self, ids: Iterable[int], now_us: int) -> None:
        for event_id in ids:
            self.acked.setdefault(event_id, now_us)

    def going_back(self, ids: Iterable[int]) -> dict[int, int]:
        """From now until it is answered, these may be rolled back; the counts they have then."""
        if not self.counted:
            return {}
        atleast = {}
        for event_id in ids:
            least, most = self._counts.get(event_id, (0, 0))
            self._counts[event_id] = (least, most + 1)
            atleast[event_id] = least + 1
        return atleast

    def went_back(self, atleast: dict[int, int]) -> None:
        for event_id, count in atleast.items():
            least, most = self._counts[event_id]
            self._counts[event_id] = (max(least, count), most)

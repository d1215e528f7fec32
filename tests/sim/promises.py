"""Promises that clients received, remembered outside the realm, so that they outlive every power
cut."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from penstock_core.ids.ids import Span


class Ledger:
    """The events of one store, as its publishers know them."""

    def __init__(self, store: str) -> None:
        self.store = store
        self.offered: set[bytes] = set()
        """Data of every event ever sent."""
        self.confirmed: dict[tuple[str, int], Span] = {}
        """Ids by producer and sequence."""
        self.content: dict[int, bytes] = {}
        """Data by id, of every event received or confirmed."""
        self.lives: dict[int, int] = {}
        """The life of the realm when an id's publish was sent first."""
        self.unsure_lives: set[int] = set()
        """Ids whose publish was sent in several lives: each of them may have stored it."""
        self.doubtful: dict[str, tuple[bytes, ...]] = {}
        """Data sent without an answer, by label; all of it is stored, or none."""
        self.forgotten: set[bytes] = set()
        """Data sent again after its publisher had been silent for longer than producers are
        remembered (SEM X3): it may be stored twice."""
        self.refused: set[bytes] = set()
        """Data that the realm refused to store."""

    def check_content(self, event_id: int, data: bytes) -> None:
        assert data in self.offered, f"event {event_id} of {self.store} was never published"
        first_data = self.content.setdefault(event_id, data)
        assert first_data == data, f"id {event_id} of {self.store} was given to two events"

    def confirm(
        self, producer: str, sequence: int, span: Span, datas: Sequence[bytes], *, life: int = 0
    ) -> None:
        assert span.size == len(datas), f"{len(datas)} events got the ids {span}"
        self.confirmed[producer, sequence] = span
        for event_id, data in zip(range(*span), datas, strict=True):
            self.check_content(event_id, data)
            self.lives[event_id] = life
        earlier = self.confirmed.get((producer, sequence - 1))
        assert earlier is None or earlier.end <= span.first, "ids do not follow publish order"

    @property
    def ids(self) -> list[int]:
        """All confirmed ids."""
        return sorted(self.lives)

    def check_complete(self, stored: Sequence[tuple[int, bytes]]) -> None:
        """Check that the stored events are exactly the promised ones, once and in order."""
        ids = [event_id for event_id, _ in stored]
        assert ids == self.ids, f"{self.ids} were promised on {self.store}; stored are {ids}"
        assert len({data for _, data in stored}) == len(stored), "an event is stored twice"
        for event_id, data in stored:
            self.check_content(event_id, data)

    def check_stored(self, stored: Sequence[tuple[int, bytes]]) -> None:
        """Check that the stored events are the promised ones and possibly some whose publish was
        not answered."""
        ids = [event_id for event_id, _ in stored]
        datas = {data for _, data in stored}
        once = [data for _, data in stored if data not in self.forgotten]
        assert len(set(once)) == len(once), f"an event of {self.store} is stored twice"
        assert set(self.ids) <= set(ids), (
            f"{sorted(set(self.ids) - set(ids))} were promised on {self.store}, and are gone"
        )
        for event_id, data in stored:
            self.check_content(event_id, data)
        assert not datas & self.refused, f"{datas & self.refused} were refused, and are stored"
        for label, parts in self.doubtful.items():
            stored_parts = datas & set(parts)
            assert len(stored_parts) in (0, len(parts)), f"of {label} there is {stored_parts}"
        promised = {self.content[event_id] for event_id in self.lives}
        unknown = datas - promised - {part for parts in self.doubtful.values() for part in parts}
        assert not unknown, f"nobody knows of {unknown} on {self.store}"


class Receipts:
    """Events that one durable, or the readers of one queue, received and settled."""

    def __init__(
        self, name: str, ledger: Ledger, *, counted: bool = True, remote: bool = False
    ) -> None:
        self.name = name
        self.ledger = ledger
        self.counted = counted
        """Whether rollbacks are counted (SEM D, rollback)."""
        self.remote = remote
        """Whether a lost connection may also count, for events that no client has seen (SEM
        D13)."""
        self.requested: dict[int, int] = {}
        """Time at which each id's acknowledgement was first requested."""
        self.acked: dict[int, int] = {}
        """Time at which each id's acknowledgement was answered."""
        self.seen: set[int] = set()
        self.given_back: set[int] = set()
        """Ids given back that the next subscription must receive, and not delivered since."""
        self._counts: dict[int, tuple[int, int]] = {}
        """Lowest and highest possible redeliveries: a rollback without an answer may have
        happened."""

    def delivered(
        self,
        ids: Sequence[int],
        datas: Sequence[bytes],
        counts: dict[int, int],
        *,
        stale: bool = False,
    ) -> None:
        """``stale``: the events were in transit when the realm gave up this client, and may have
        been delivered to others and settled since."""
        for event_id, data in zip(ids, datas, strict=True):
            self.ledger.check_content(event_id, data)
            self.seen.add(event_id)
            self.given_back.discard(event_id)
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

    def ack_requested(self, ids: Iterable[int], now_us: int) -> None:
        for event_id in ids:
            self.requested.setdefault(event_id, now_us)

    def ack_answered(self, ids: Iterable[int], now_us: int) -> None:
        for event_id in ids:
            self.acked.setdefault(event_id, now_us)

    def rollback_requested(self, ids: Iterable[int]) -> dict[int, int]:
        """Note that a rollback of these ids was requested. Returns their lowest counts if it is
        answered."""
        if not self.counted:
            return {}
        lowest_counts = {}
        for event_id in ids:
            least, most = self._counts.get(event_id, (0, 0))
            self._counts[event_id] = (least, most + 1)
            lowest_counts[event_id] = least + 1
        return lowest_counts

    def rollback_answered(self, lowest_counts: dict[int, int]) -> None:
        for event_id, count in lowest_counts.items():
            least, most = self._counts[event_id]
            self._counts[event_id] = (max(least, count), most)

"""The stored events that a selector may match are found without reading them (SEM F5)."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from packages.server.tests.runtime.living import SINGLE, Reader, body, living, publish, sealed
from penstock_core.columns.selectors import Selector
from penstock_core.ids.ids import IdSet, Span, Spans
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.delivery import delivery
from penstock_server.runtime.delivery.selection import SelectorLimits
from penstock_server.runtime.realm import Limits, RunningRealm
from penstock_server.runtime.store.channel_store import JUDGED_WORK_MAX
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import simulated

SPINDLES = Definition(
    type="persistent", retain_consumed=True, storage=Storage(events_per_spindle=10)
)
IN_TENS = replace(
    SPINDLES, storage=replace(SPINDLES.storage, enable_caching=False, read_buffer_size=5_500)
)
"""Ten events of 500 bytes are read at once."""
ALL: Spans = (Span(0, 50),)

pytestmark = pytest.mark.spec("F5")


async def filled(realm: RunningRealm, definition: Definition, data: bytes = b"x") -> None:
    """Publish fifty events with prices 0 to 4; the last ten stay unsealed."""
    await realm.create_channel("orders", definition)
    for price in range(5):
        await publish(realm, ChannelId(1), body([data] * 10, price=price))
        if price < 4:
            await sealed(realm, "orders")


def promising(
    realm: RunningRealm, text: str, spans: Spans = ALL, work_max: int = JUDGED_WORK_MAX
) -> list[Span]:
    return list(realm.shard.state.stores[1].promising(spans, Selector(text), 0, work_max=work_max))


@pytest.mark.parametrize("definition", [SPINDLES, SINGLE], ids=["spindles", "single file"])
@simulated
async def test_record_batches_without_a_match_are_left_out(definition: Definition) -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await filled(realm, definition)
        assert promising(realm, "price = 2") == [Span(20, 30), Span(40, 50)]
        assert promising(realm, "price < 1 OR price = 3") == [
            Span(0, 10),
            Span(30, 50),
        ]
        assert promising(realm, "price >= 0") == [Span(0, 50)]
        assert promising(realm, "misspelt = 1") == [Span(40, 50)]
        assert promising(realm, "price = 2", (Span(5, 25),)) == [Span(20, 25)]
        assert promising(realm, "price = 2", (Span(5, 8), Span(41, 42))) == [Span(41, 42)]


@simulated
async def test_a_long_selector_is_compared_with_a_few_summaries_and_the_rest_is_read() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await filled(realm, SPINDLES)
        assert promising(realm, "price = 9", work_max=4) == [Span(40, 50)]
        assert promising(realm, "price = 9 OR price = 8", work_max=4) == [Span(20, 50)]
        assert promising(realm, " OR ".join(["price = 9"] * 9), work_max=4) == [Span(10, 50)]


@simulated
async def test_events_in_memory_among_those_of_a_file_are_kept() -> None:
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        await filled(realm, SPINDLES)
        store = realm.shard.state.stores[1]
        kept = IdSet((Span(3, 5),))
        tail_batch = store.tail[0].__class__(
            Span(3, 5),
            0,
            store.tail[0].schema_id,
            schema=store.tail[0].schema,
            body=store.tail[0].body,
        )
        store.add_restored(tail_batch)
        assert store.late.overlap(kept) == kept
        assert promising(realm, "price = 2") == [Span(3, 5), Span(20, 30), Span(40, 50)]


@pytest.mark.parametrize(("spends", "turns"), [(32, (1, 2)), (2, (2, 5)), (0, (5, 6))])
@simulated
async def test_events_that_cannot_match_are_passed_over_in_few_turns_of_the_writer(
    monkeypatch: pytest.MonkeyPatch, spends: int, turns: tuple[int, int]
) -> None:
    counted: list[bool] = []
    perform = delivery.Dispatch.perform

    async def counting(*arguments: Any, **options: Any) -> bool:
        counted.append(await perform(*arguments, **options))
        return counted[-1]

    monkeypatch.setattr(delivery.Dispatch, "perform", counting)
    limits = Limits(selectors=SelectorLimits(passed_work=spends))
    async with living(MemoryJournal(), MemoryBlobs(), limits=limits) as realm:
        await filled(realm, IN_TENS, data=b"x" * 500)
        await sealed(realm, "orders")
        reader = Reader()
        reader.selector = Selector("price = 9")
        subscribe = realm.subscriptions.subscribe
        await subscribe(ChannelId(1), FromEarliest(), reader, credit=20, browse=True)
        await reader.at_end.wait()
    assert reader.ids == []
    assert turns[0] <= sum(counted) <= turns[1]
    assert len(counted) - sum(counted) <= 1

"""Transient events, together with stored events (SEM E8)."""

from __future__ import annotations

from typing import Any

import pytest

from packages.server.tests.runtime.lives import ENDS, LATE, End, Lives, datas, named
from packages.server.tests.runtime.living import EAGER
from penstock_core.columns.events.event import Event
from penstock_core.vocabulary.definitions import Storage
from penstock_testing.loop import pass_time, simulated


def mixture() -> list[Event]:
    return [
        *named("said", transient=True),
        *named("written"),
        *named("said too", transient=True),
        *named("written too"),
    ]


@pytest.mark.spec("E8", "C1g")
@pytest.mark.parametrize("end", ENDS)
@pytest.mark.parametrize("sealing", [EAGER, LATE], ids=["sealed", "in the tail"])
@pytest.mark.parametrize("type", ["persistent", "mixed", "paged"])
@simulated
async def test_one_publish_may_have_transient_and_stored_events(
    type: str, sealing: Any, end: End
) -> None:
    lives = Lives(sealing=sealing)
    async with lives.life(end):
        await lives.create("aloud", type)
        follower = await lives.follow("aloud")
        await lives.put("aloud", *mixture())
        heard = await follower.has(4)
        assert datas(heard) == ["said", "written", "said too", "written too"]
        assert datas(await lives.stored("aloud")) == ["written", "written too"]
    async with lives.life(end):
        await lives.put("aloud", *named("later"))
        stored = await lives.stored("aloud")
        assert datas(stored) == ["written", "written too", "later"]
        assert [event.event_id for event in stored][:2] == [1, 3]
        assert (stored[2].event_id or 0) >= 4
        await lives.conserved()


@pytest.mark.spec("E8", "D13")
@pytest.mark.parametrize("kind", ["shared", "serial", "exclusive", "priority", "shared_queued"])
@simulated
async def test_a_client_may_leave_while_a_transient_event_is_in_flight(kind: str) -> None:
    lives = Lives()
    async with lives.life():
        each_by_itself = Storage(sync_each_write=True)  # the end of a client comes later
        await lives.create("aloud", retain_consumed=True, storage=each_by_itself)
        await lives.durable("aloud", "one", kind)
        stays = await lives.follow("aloud")
        leaver = await lives.attach("aloud", "one")
        sent = lives.send("aloud", *mixture())
        await leaver.leave()
        await sent
        assert datas(await stays.has(4)) == datas(mixture())
        await lives.put("aloud", *named("after"))
        returned = await lives.attach("aloud", "one")
        assert datas(await returned.has(3)) == ["written", "written too", "after"]


@pytest.mark.spec("E8", "S1")
@simulated
async def test_a_transient_event_passes_while_a_damaged_one_is_quarantined() -> None:
    lives = Lives(sealing=EAGER)
    async with lives.life():
        await lives.create("aloud")
        await lives.durable("aloud", "one")
        await lives.put("aloud", *named("damaged"))
        await lives.sealed("aloud")
        (file,) = await lives.store.blobs.list("segments/")
        content = lives.disk.content(f"/realm/{file.name}")
        lives.disk.flip(f"/realm/{file.name}", content.index(b"damaged"))
        sent = lives.send("aloud", *mixture())
        worker = await lives.attach("aloud", "one")
        await sent
        await pass_time(0.1)
        assert datas(worker.events)[-2:] == ["written", "written too"]
        info = await lives.info("aloud")
        assert (info.counters.quarantined, info.events) == (1, 2)

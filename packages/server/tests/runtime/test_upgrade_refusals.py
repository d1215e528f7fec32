"""During a rolling upgrade, facts that an older node could not read are refused."""

from __future__ import annotations

import pytest
from msgspec import Struct

from packages.server.tests.runtime.living import living
from penstock_core.messages.definitions import ChannelCreated, Edit
from penstock_core.messages.durables import AddDurable, DurableCreated
from penstock_core.messages.publishing import PublishingPauseSet
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.identities import ChannelId
from penstock_server.runtime.store import newer_facts
from penstock_server.runtime.store.newer_facts import refuse_newer
from penstock_server.runtime.store.records import SINCE
from penstock_server.runtime.writer import group
from penstock_server.runtime.writer.requests import RunCommand
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import simulated

OLD, NEW = 1, 2


class Upgrading:
    """A cluster in the middle of an upgrade."""

    epoch = 0

    def __init__(self, *behind: str) -> None:
        self.format = OLD
        self._behind = behind

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        return self._behind if format == NEW else ()


@pytest.fixture(autouse=True)
def newer(monkeypatch: pytest.MonkeyPatch) -> None:
    """Declare attributes that are newer than the first format."""
    since: dict[tuple[type[Struct], str], int] = {
        (Definition, "retain_consumed"): NEW,
        (Storage, "sync_batch_time"): NEW,
        (DurableAttributes, "ack_timeout"): NEW,
    }
    for module in (newer_facts, group):
        monkeypatch.setattr(module, "FORMAT", NEW)
    fact: type[Struct] = PublishingPauseSet
    monkeypatch.setitem(SINCE, fact, NEW)
    for attribute, format in since.items():
        monkeypatch.setitem(newer_facts.ATTRIBUTES_SINCE, attribute, format)


def test_the_refusal_names_the_attribute_and_the_nodes_that_hold_the_upgrade_back() -> None:
    fact = ChannelCreated(ChannelId(1), "orders", Definition(retain_consumed=True))

    with pytest.raises(IllegalState) as refused:
        refuse_newer(fact, Upgrading("n1 (0.1.0, format 1)", "n3 (0.1.0, format 1)"))

    assert str(refused.value) == (
        "the attribute retain_consumed is new in format 2, but the cluster writes format 1 until "
        "its upgrade is finished. n1 (0.1.0, format 1), n3 (0.1.0, format 1) cannot read it: "
        "upgrade the older nodes, and then run penstock cluster upgrade --finish, or leave "
        "retain_consumed out"
    )


def test_if_all_nodes_have_the_newer_version_the_error_asks_to_finish_the_upgrade() -> None:
    with pytest.raises(IllegalState, match="every node can read it: run penstock cluster upgrade"):
        refuse_newer(PublishingPauseSet(paused=True), Upgrading())


def test_nested_attributes_count_and_those_with_their_default_do_not() -> None:
    storage = Storage(sync_batch_time=7)
    with pytest.raises(IllegalState, match="attribute sync_batch_time is new in format 2"):
        refuse_newer(ChannelCreated(ChannelId(1), "o", Definition(storage=storage)), Upgrading())
    with pytest.raises(IllegalState, match="attribute ack_timeout is new in format 2"):
        refuse_newer(
            DurableCreated("d", "shared", start_id=True, selector="", ack_timeout=3_000),
            Upgrading(),
        )

    refuse_newer(ChannelCreated(ChannelId(1), "o", Definition(ttl=5)), Upgrading("n1"))
    refuse_newer(DurableCreated("d", "shared", start_id=True, selector=""), Upgrading("n1"))


@simulated
async def test_a_refused_request_changes_nothing_and_succeeds_after_the_upgrade() -> None:
    upgrading = Upgrading("n1 (0.1.0, format 1)")
    kept = Definition(type="persistent", retain_consumed=True)
    async with living(MemoryJournal(), MemoryBlobs()) as realm:
        realm.shard.state.agreed = upgrading
        with pytest.raises(IllegalState, match=r"retain_consumed .* n1 \(0\.1\.0, format 1\)"):
            await realm.create_channel("orders", kept)
        assert realm.directory.find("orders") is None
        opened = await realm.create_channel("orders", Definition(type="persistent"))
        state = realm.directory.channels[opened.channel].state
        for command in (Edit(kept), AddDurable("d", "shared", ack_timeout=3_000)):
            with pytest.raises(IllegalState, match="the cluster writes format 1"):
                await realm.shard.ask(RunCommand(opened.channel, command))
        assert not state.definition.retain_consumed
        assert not state.durables

        upgrading.format = NEW
        await realm.shard.ask(RunCommand(opened.channel, Edit(kept)))
        assert state.definition.retain_consumed

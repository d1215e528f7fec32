"""The namespace of a realm."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from packages.core.tests.realm.directories import at_a_node, create
from penstock_core.channel.apply import apply
from penstock_core.channel.decide import decide
from penstock_core.channel.recovery import snapshot
from penstock_core.ids.ids import Span
from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted, Edited
from penstock_core.messages.durables import AddDurable, DurableCreated
from penstock_core.messages.publishing import PublishingPauseSet
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.durable_attributes import DurableAttributes
from penstock_core.vocabulary.errors import (
    IllegalState,
    InvalidArgument,
    InvalidName,
    NameAlreadyBound,
    NameDoesNotExist,
)
from penstock_server.bootstrap import rules


def directory(*names: str) -> Directory:
    made = Directory(rules())
    for name in names:
        create(made, name)
    return made


def delete(directory: Directory, name: str) -> None:
    for fact in directory.decide_delete(name):
        directory.apply(fact)


@pytest.mark.spec("C2")
def test_two_spellings_of_a_name_are_one_channel() -> None:
    realm_directory = directory("a/b")

    assert realm_directory.channel_id_of("/a::b") == 1
    with pytest.raises(NameAlreadyBound):
        realm_directory.decide_create("a\\b", Definition())


@pytest.mark.spec("C2")
@pytest.mark.parametrize(("existing", "wanted"), [("a/b/c", "a/b"), ("a/b", "a/b/c")])
def test_a_store_may_lie_beside_a_folder_of_its_name(existing: str, wanted: str) -> None:
    realm_directory = directory(existing, wanted)
    assert realm_directory.names("channel") == sorted([existing, wanted])

    delete(realm_directory, existing)
    assert realm_directory.names("channel") == [wanted]
    create(realm_directory, existing, kind="queue")
    assert realm_directory.channel_id_of(wanted) == 2
    assert realm_directory.channel_id_of(existing) == 3


def test_a_channel_deleted_and_made_again_is_another_one() -> None:
    realm_directory = directory("a")
    delete(realm_directory, "a")
    create(realm_directory, "a")

    assert realm_directory.channel_id_of("a") == 2
    realm_directory.apply(ChannelDeleted(1))
    assert realm_directory.channel_id_of("a") == 2, "deleting what is gone is not a change"


def test_a_wrong_case_is_pointed_out() -> None:
    with pytest.raises(NameDoesNotExist, match="case-sensitive: there is Orders"):
        directory("Orders").channel_id_of("orders")


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (
            Definition(type="paper"),
            "mixed, off_heap, paged, persistent, reliable, simple, transient",
        ),
        (Definition(engine="steam"), "allowed are default"),
        (Definition(ttl=-1), "ttl is -1"),
        (Definition(capacity=2_147_483_647), "capacity is 2147483647"),
        (Definition(start_event_id=-5), "start_event_id is -5"),
        (Definition(storage=Storage(events_per_spindle=-1)), "events_per_spindle is -1"),
    ],
)
def test_attributes_out_of_bounds_are_refused(definition: Definition, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        directory().decide_create("a", definition)

    assert reason in str(refused.value)


@pytest.mark.spec("C2")
@pytest.mark.parametrize(
    "spelling", ["orders/new", "/orders/new", "orders//new", "orders::new", "orders\\new"]
)
def test_every_spelling_leads_to_the_same_store(spelling: str) -> None:
    realm_directory = directory()
    create(realm_directory, spelling)

    assert realm_directory.channels[1].state.name == "orders/new"
    assert (
        realm_directory.channel_id_of("orders/new") == realm_directory.channel_id_of(spelling) == 1
    )


@pytest.mark.spec("C2")
@pytest.mark.parametrize(
    "name", ["", "/", "a\n", "a/..", "a/*", "\u202ea", "\ud800", " a", "x" * 256]
)
def test_a_name_that_cannot_be_creates_nothing(name: str) -> None:
    realm_directory = directory()
    with pytest.raises(InvalidName):
        realm_directory.decide_create(name, Definition())

    assert not realm_directory.channels
    create(realm_directory, "x" * 255)
    assert realm_directory.names("channel") == ["x" * 255]


@pytest.mark.spec("C2")
@pytest.mark.parametrize(("first", "second"), [("channel", "queue"), ("queue", "channel")])
def test_channels_and_queues_have_one_namespace(first: str, second: str) -> None:
    realm_directory = directory()
    create(realm_directory, "work", kind=first)
    with pytest.raises(NameAlreadyBound, match="work already exists"):
        create(realm_directory, "work", kind=second)
    create(realm_directory, "work/below", kind=second)
    with pytest.raises(NameDoesNotExist, match=f"work is a {first}, not a {second}"):
        realm_directory.channel_id_of("work", second)

    assert realm_directory.channel_id_of("work", first) == 1
    assert realm_directory.names(second) == ["work/below"]


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("storage", "reason"),
    [
        (Storage(priority=10), "storage.priority is 10; allowed are 0 to 9"),
        (Storage(sync_batch_time=-1), "storage.sync_batch_time is -1"),
        (Storage(sync_max_batch_size=-1), "storage.sync_max_batch_size is -1"),
        (Storage(read_buffer_size=1), "storage.read_buffer_size is 1; allowed are 4096 to"),
    ],
)
def test_storage_properties_out_of_bounds_are_refused(storage: Storage, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        create(directory(), "a", storage=storage)

    assert reason in str(refused.value)


@pytest.mark.spec("C4", "K1")
@pytest.mark.parametrize(
    ("attributes", "reason"),
    [
        ({"engine": "jms,merge", "keys": {"k": 1}}, "jms and merge cannot be combined"),
        ({"engine": "merge + jms"}, "jms and merge cannot be combined"),
        ({"engine": "merge"}, "exactly one publish key with depth 1, because"),
        ({"engine": "merge", "keys": {"k": 2}}, "one state for each value; the keys are {'k': 2}"),
        ({"engine": "merge", "keys": {"k": 1, "l": 1}}, "the keys are {'k': 1, 'l': 1}"),
        ({"kind": "queue", "engine": "jms"}, "a queue takes engine default only"),
        ({"keys": {"k": 0}}, "publish key k has depth 0"),
        ({"keys": {"": 1}}, "cannot be a publish key"),
        ({"keys": {"$penstock": 1}}, "cannot be a publish key"),
        ({"max_deliveries": 3}, "an attribute of queues and durables"),
        ({"kind": "queue", "max_deliveries": 3}, "max_deliveries needs a dead_event_store"),
        ({"kind": "schedule"}, "only the realm makes schedules"),
    ],
)
def test_attributes_that_exclude_each_other_are_refused_with_the_reason(
    attributes: dict[str, Any], reason: str
) -> None:
    realm_directory = directory()
    with pytest.raises(InvalidArgument) as refused:
        create(realm_directory, "a", **attributes)

    assert reason in str(refused.value)
    assert not realm_directory.channels


@pytest.mark.spec("C5", "N5")
@pytest.mark.parametrize("kind", ["channel", "queue"])
def test_only_stores_that_remember_their_ids_may_be_cluster_wide(kind: str) -> None:
    for type_ in rules().types:
        realm_directory = in_a_cluster()
        if type_ in ("simple", "transient"):
            with pytest.raises(InvalidArgument, match=f"a {type_} channel cannot be cluster-wide"):
                create(realm_directory, "a", type=type_, kind=kind, cluster_wide=True)
            create(realm_directory, "a", type=type_, kind=kind)
        else:
            create(realm_directory, "a", type=type_, kind=kind, cluster_wide=True)

    assert not Definition().cluster_wide, "the API says so itself, or it is not"


def in_a_cluster() -> Directory:
    return Directory(replace(rules(), is_cluster=True))


@pytest.mark.spec("C5", "N5")
def test_a_store_of_a_cluster_is_cluster_wide_where_its_type_allows_unless_it_is_said() -> None:
    for type_, kind in rules().types.items():
        realm_directory = in_a_cluster()
        create(realm_directory, "not/given", type=type_)
        state = realm_directory.channels[1].state
        assert state.definition.cluster_wide is kind.clusterable
        assert state.type.name == type_
        if not kind.clusterable:
            assert state.type is kind
            with pytest.raises(InvalidArgument, match=f"a {type_} channel cannot be cluster-wide"):
                create(realm_directory, "given", type=type_, cluster_wide=True)
            continue
        digest = Digest(count=3, size=9, largest=3, volatile=(Span(0, 3),))
        assert (state.type.home, state.type.survives_restart) == ("journal", True)
        assert state.type.volatile(digest) == (), "all events are kept, whatever the type"
        assert state.type.event_ttl_counts == kind.event_ttl_counts
        create(realm_directory, "given", type=type_, cluster_wide=True)
        assert realm_directory.channels[2].state.definition.cluster_wide is True


@pytest.mark.spec("C5")
@pytest.mark.parametrize("type_", ["reliable", "off_heap", "mixed", "persistent"])
def test_a_store_of_a_cluster_that_is_not_cluster_wide_is_as_on_one_node(type_: str) -> None:
    realm_directory = in_a_cluster()
    create(realm_directory, "local", type=type_, cluster_wide=False)

    assert realm_directory.channels[1].state.definition.cluster_wide is False
    assert realm_directory.channels[1].state.type is rules().types[type_]


def test_pages_are_no_place_for_a_store_of_one_node_of_a_cluster() -> None:
    with pytest.raises(InvalidArgument, match="leave cluster_wide out"):
        create(in_a_cluster(), "a", type="paged", cluster_wide=False)


@pytest.mark.spec("C5")
@pytest.mark.parametrize("cluster_wide", [None, False])
def test_on_a_single_realm_nothing_is_cluster_wide_and_nothing_is_stored_of_it(
    cluster_wide: bool | None,
) -> None:
    realm_directory = directory()
    create(realm_directory, "a", type="reliable", cluster_wide=cluster_wide)

    assert realm_directory.channels[1].state.type is rules().types["reliable"]
    stored = msgspec.msgpack.encode(realm_directory.channels[1].state.definition)
    assert msgspec.msgpack.decode(stored) == {"type": "reliable"}


@pytest.mark.spec("C5")
@pytest.mark.parametrize("kind", ["channel", "queue"])
def test_on_a_single_realm_nothing_can_be_made_or_edited_cluster_wide(kind: str) -> None:
    realm_directory = directory()
    create(realm_directory, "a", kind=kind)

    with pytest.raises(InvalidArgument, match="b cannot be cluster-wide: this realm is on one"):
        create(realm_directory, "b", kind=kind, cluster_wide=True)
    with pytest.raises(InvalidArgument, match="a cannot be cluster-wide: this realm is on one"):
        realm_directory.checked("a", Definition(kind=kind, cluster_wide=True))  # type: ignore[arg-type]
    assert list(realm_directory.channels) == [1]


@pytest.mark.spec("C5")
def test_what_an_earlier_version_made_cluster_wide_on_a_single_realm_is_not_when_it_opens() -> None:
    realm_directory = directory()
    realm_directory.apply(
        ChannelCreated(1, "a", Definition(type="reliable", ttl=5, cluster_wide=True))
    )
    state = realm_directory.channels[1].state
    assert state.definition == Definition(type="reliable", ttl=5)

    apply(state, DurableCreated("d", "shared", 0, cluster_wide=True))
    apply(state, Edited(Definition(type="reliable", ttl=6, cluster_wide=True)))

    assert state.definition == Definition(type="reliable", ttl=6)
    assert state.durables["d"].attributes == DurableAttributes()
    edited = realm_directory.checked("a", Definition(type="reliable", cluster_wide=False))
    assert edited == Definition(type="reliable")


@pytest.mark.spec("C5")
def test_a_snapshot_of_an_earlier_version_leaves_no_cluster_wide_durable_behind() -> None:
    realm_directory = in_a_cluster()
    create(realm_directory, "a", type="persistent")
    wide = realm_directory.channels[1].state
    apply(wide, DurableCreated("d", "shared", 0, cluster_wide=True))
    alone = directory()
    create(alone, "a", type="persistent")
    state = alone.channels[1].state

    apply(state, snapshot(wide))

    assert state.definition == Definition(type="persistent")
    assert state.durables["d"].attributes == DurableAttributes()


def test_a_store_of_a_cluster_stays_where_it_is_when_it_is_edited() -> None:
    realm_directory = in_a_cluster()
    create(realm_directory, "wide", type="reliable")
    create(realm_directory, "local", type="reliable", cluster_wide=False)

    assert realm_directory.checked("wide", Definition(type="reliable", ttl=5)).cluster_wide is True
    assert (
        realm_directory.checked("local", Definition(type="reliable", ttl=5)).cluster_wide is False
    )
    with pytest.raises(InvalidArgument, match="wide is cluster-wide, which cannot be edited"):
        realm_directory.checked("wide", Definition(type="reliable", cluster_wide=False))
    with pytest.raises(InvalidArgument, match="local is not cluster-wide"):
        realm_directory.checked("local", Definition(type="reliable", cluster_wide=True))


def test_events_of_a_cluster_wide_store_do_not_end_where_one_node_keeps_them() -> None:
    realm_directory = in_a_cluster()
    create(realm_directory, "local", cluster_wide=False)
    create(realm_directory, "wide")

    with pytest.raises(InvalidArgument, match="dead event store local is not cluster-wide"):
        create(realm_directory, "a", dead_event_store="local")
    with pytest.raises(InvalidArgument, match="wide is cluster-wide and local is not"):
        realm_directory.decide_join("wide", "local", "", archive=False)
    create(realm_directory, "b", dead_event_store="wide")
    create(realm_directory, "c", dead_event_store="local", cluster_wide=False)
    realm_directory.apply(realm_directory.decide_join("local", "wide", "", archive=False))


def beside_local_stores() -> Directory:
    """Return the directory of a cluster whose node has a local channel."""
    realm_directory = in_a_cluster()
    create(realm_directory, "orders")
    realm_directory.local_names = {"readings": "channel of node n2, at penstock://b:9001"}
    return realm_directory


@pytest.mark.spec("N8")
def test_the_name_of_a_local_channel_is_taken_and_whoever_asks_for_it_is_told_where_it_is() -> None:
    realm_directory = beside_local_stores()

    with pytest.raises(NameAlreadyBound, match="as a local channel of node n2, at penstock://b:90"):
        create(realm_directory, "readings")
    with pytest.raises(NameDoesNotExist, match="a local channel of node n2, at penstock://b:9001"):
        realm_directory.channel_id_of("readings")
    realm_directory.local_names = {}
    create(realm_directory, "readings")


@pytest.mark.spec("N8")
@pytest.mark.parametrize("ends", [("orders", "readings"), ("readings", "orders")])
def test_joins_and_dead_event_stores_do_not_lead_to_a_local_channel_or_from_it(
    ends: tuple[str, str],
) -> None:
    realm_directory = beside_local_stores()

    with pytest.raises(
        InvalidArgument, match=r"readings is a local channel of node n2.* make a join from it there"
    ):
        realm_directory.decide_join(*ends, "", archive=False)
    with pytest.raises(InvalidArgument, match="the dead event store readings is a local channel"):
        create(realm_directory, "a", dead_event_store="readings")


@pytest.mark.spec("N8")
def test_local_channels_are_as_on_one_machine_and_reach_nothing_cluster_wide() -> None:
    realm_directory = at_a_node()
    create(realm_directory, "readings", type="reliable", cluster_wide=False)
    create(realm_directory, "prices")
    realm_directory.apply(realm_directory.decide_join("readings", "prices", "", archive=False))
    assert realm_directory.channels[1].state.type is rules().types["reliable"]
    assert realm_directory.channels[1].state.definition.cluster_wide is None

    with pytest.raises(NameDoesNotExist, match="among the local channels of node n2"):
        realm_directory.decide_join("readings", "orders", "", archive=False)
    with pytest.raises(
        NameDoesNotExist, match="destination of a join from here, but not a dead event store"
    ):
        create(realm_directory, "a", dead_event_store="orders")


@pytest.mark.spec("C5", "N8")
def test_nothing_local_is_made_cluster_wide() -> None:
    realm_directory = at_a_node()
    create(realm_directory, "readings")

    with pytest.raises(InvalidArgument, match="this realm has the local channels of node n2"):
        create(realm_directory, "a", cluster_wide=True)
    with pytest.raises(InvalidArgument, match="readings is a local channel of node n2"):
        decide(realm_directory.channels[1].state, AddDurable("d", "shared", cluster_wide=True), 0)


@pytest.mark.parametrize("wide", [True, False])
def test_a_schedule_is_as_cluster_wide_as_its_store(wide: bool) -> None:
    realm_directory = in_a_cluster()
    create(realm_directory, "a", type="reliable", cluster_wide=wide)

    realm_directory.apply(realm_directory.decide_schedule(1))

    assert realm_directory.channels[2].state.definition.cluster_wide is wide
    assert realm_directory.channels[2].state.type.survives_restart is wide


@pytest.mark.spec("T7")
@pytest.mark.parametrize("names", [["a"], ["a", "b"], ["a", "b", "c"]])
def test_dead_events_do_not_go_round(names: list[str]) -> None:
    realm_directory = directory()
    create(realm_directory, names[-1])
    for name, dead in zip(reversed(names[:-1]), reversed(names[1:]), strict=True):
        create(realm_directory, name, dead_event_store=dead)
    way = " -> ".join([names[-1], *names])
    with pytest.raises(
        InvalidArgument, match=f"leads back: {way}; dead events would move in a circle"
    ):
        realm_directory.checked(names[-1], Definition(dead_event_store=f"/{names[0]}"))


@pytest.mark.spec("T7")
def test_a_store_cannot_be_created_as_its_own_dead_event_store() -> None:
    with pytest.raises(InvalidArgument, match="leads back: a -> a"):
        create(directory(), "a", dead_event_store="a")


@pytest.mark.spec("T5")
def test_a_dead_event_store_is_any_store_there_is() -> None:
    realm_directory = directory("dead")
    create(realm_directory, "work", kind="queue", dead_event_store="/dead")
    with pytest.raises(NameDoesNotExist, match="the dead event store Dead does not exist"):
        create(realm_directory, "a", dead_event_store="Dead")

    assert realm_directory.dead_event_store_of(
        realm_directory.channel_id_of("work")
    ) == realm_directory.channel_id_of("dead")
    assert realm_directory.dead_event_store_of(realm_directory.channel_id_of("dead")) is None
    assert realm_directory.channels[2].state.definition.dead_event_store == "dead"


@pytest.mark.spec("T7")
def test_a_dead_event_store_in_use_is_not_deleted() -> None:
    realm_directory = directory("dead")
    create(realm_directory, "a", dead_event_store="dead")
    with pytest.raises(IllegalState, match="dead is the dead event store of a"):
        realm_directory.decide_delete("dead")
    delete(realm_directory, "a")
    delete(realm_directory, "dead")

    assert not realm_directory.channels


@pytest.mark.spec("X4")
def test_a_schedule_comes_and_goes_with_its_channel() -> None:
    realm_directory = directory("a/b")
    realm_directory.apply(realm_directory.decide_schedule(1))
    assert realm_directory.schedule_of(1) == 2
    assert realm_directory.names("schedule") == ["$a/b"]
    assert realm_directory.find("$a/b") is None
    with pytest.raises(NameDoesNotExist):
        realm_directory.channel_id_of("$a/b")
    create(realm_directory, "$a/b")
    assert realm_directory.channel_id_of("$a/b") == 3
    delete(realm_directory, "a/b")
    assert realm_directory.names("schedule") == []
    delete(realm_directory, "$a/b")

    assert not realm_directory.channels
    create(realm_directory, "a")


@pytest.mark.spec("X4")
@pytest.mark.parametrize(
    ("type_", "waits_on"),
    [
        ("persistent", "persistent"),
        ("mixed", "mixed"),
        ("reliable", "reliable"),
        ("simple", "simple"),
        ("transient", "simple"),
        ("off_heap", "reliable"),
        ("paged", "persistent"),
    ],
)
def test_what_waits_for_its_time_lives_as_long_as_the_channels_events(
    type_: str, waits_on: str
) -> None:
    realm_directory = directory()
    create(realm_directory, "a", type=type_)

    assert realm_directory.decide_schedule(1).definition.type == waits_on


def join(directory: Directory, source: str, destination: str, *, archive: bool = False) -> None:
    directory.apply(directory.decide_join(source, destination, "", archive=archive))


@pytest.mark.spec("L1", "L3")
def test_joins_that_cannot_be_are_refused() -> None:
    realm_directory = directory("a", "b")
    create(realm_directory, "q", kind="queue")
    join(realm_directory, "a", "b")
    refusals = [
        ("q", "a", False, InvalidArgument, "q is a queue; the source of a join must be a channel"),
        ("a", "a", False, InvalidArgument, "would never end"),
        (
            "b",
            "a",
            True,
            InvalidArgument,
            "a is a channel; the destination of an archive join must be a queue",
        ),
        ("a", "b", False, NameAlreadyBound, "a join from a to b already exists"),
        ("x", "b", False, NameDoesNotExist, "there is no channel or queue x"),
        ("a", "x", False, NameDoesNotExist, "there is no channel or queue x"),
    ]
    for source, destination, archive, error, reason in refusals:
        with pytest.raises(error, match=reason):
            join(realm_directory, source, destination, archive=archive)

    join(realm_directory, "b", "a")
    join(realm_directory, "a", "q", archive=True)
    assert [
        (copied_join.source, copied_join.destination) for copied_join in realm_directory.joins
    ] == [
        (1, 2),
        (1, 3),
        (2, 1),
    ]


@pytest.mark.spec("L1")
def test_a_join_ends_where_it_is_deleted_or_its_source_is() -> None:
    realm_directory = directory("a", "b")
    join(realm_directory, "a", "b")
    with pytest.raises(IllegalState, match="b is the destination of a join from a"):
        realm_directory.decide_delete("b")
    with pytest.raises(NameDoesNotExist, match="no join from b to a"):
        realm_directory.decide_unjoin("b", "a")
    realm_directory.apply(realm_directory.decide_unjoin("a", "b"))
    assert list(realm_directory.joins) == []

    join(realm_directory, "a", "b")
    delete(realm_directory, "a")
    delete(realm_directory, "b")
    assert list(realm_directory.joins) == []


@pytest.mark.spec("X5")
def test_publishing_pauses_until_it_is_resumed() -> None:
    realm_directory = directory("a")
    assert not realm_directory.publishing_paused
    realm_directory.apply(PublishingPauseSet(paused=True))
    assert realm_directory.publishing_paused
    realm_directory.apply(PublishingPauseSet(paused=False))

    assert not realm_directory.publishing_paused

"""Exported realms of Universal Messaging as topologies."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import quoteattr

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Event
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.migration import conversion as conversion_module
from penstock_tools.migration import realm_xml
from penstock_tools.migration.conversion import Conversion, remark
from penstock_tools.migration.universal_messaging import convert_realm
from penstock_tools.topology import apply, look, parse, plan, to_toml
from tests.access.realms import QUICK
from tests.commands import commands_of
from tests.counting import counted_calls
from tests.thorough import examples

REALM = Path(__file__).with_name("realm.xml")


@pytest.fixture
def guarded() -> Iterator[Session]:
    """A session with a realm that keeps users."""
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm, realm.connect() as opened:
        yield opened


def converted(*entries: str) -> Conversion:
    text = f"<NirvanaRealm><AnySet>{''.join(entries)}</AnySet></NirvanaRealm>"
    return convert_realm(text.encode(), "realm.xml")


def channel(name: str, *parts: str, **attributes: str) -> str:
    attribute_text = " ".join(f"{key}={quoteattr(value)}" for key, value in attributes.items())
    described = f"<ChannelAttributesEntry name={quoteattr(name)} {attribute_text}/>"
    return f"<ChannelEntry>{described}{''.join(parts)}</ChannelEntry>"


def queue(name: str, *parts: str, **attributes: str) -> str:
    return (
        channel(name, *parts, **attributes)
        .replace("<ChannelEntry", "<QueueEntry")
        .replace("</ChannelEntry", "</QueueEntry")
    )


def applied(session: Session, made: Conversion) -> None:
    """The conversion as a file, applied; a second time there is nothing to do."""
    wanted = parse(to_toml(made.topology(), remark=remark), file="shop.toml")
    apply(session, plan(wanted, look(session, wanted)))
    assert plan(wanted, look(session, wanted)).steps == ()


def reports(made: Conversion) -> str:
    return "\n".join(str(difference) for difference in made.differences)


def test_a_realm_has_what_the_export_says(guarded: Session) -> None:
    applied(guarded, convert_realm(REALM.read_bytes(), "realm.xml"))

    orders = guarded.channels.get("eu/orders")
    definition = orders.info().definition
    assert (definition.type, definition.ttl, definition.keys) == ("mixed", 3_600_000, {"sku": 3})
    assert definition.dead_event_store == "dead"
    assert definition.storage.honour_capacity
    assert {durable.name: durable.type for durable in orders.durables.list()} == {
        "app:audit": "exclusive",
        "billing": "serial",
        "team": "shared",
    }
    types = {name: guarded.channels.get(name).info().definition for name in guarded.channels.list()}
    assert {
        name: (store_definition.type, store_definition.engine)
        for name, store_definition in types.items()
    } == {
        "cache": ("reliable", "default"),
        "dead": ("persistent", "default"),
        "eu/orders": ("mixed", "default"),
        "jms/news": ("reliable", "jms"),
        "prices": ("mixed", "merge"),
        "ticks": ("transient", "default"),
    }
    assert guarded.queues.list() == ["archive", "work"]
    joins = {(join.source, join.destination): join for join in guarded.joins.list()}
    assert joins["eu/orders", "work"].selector == "price > 100"
    assert joins["eu/orders", "archive"].archive
    groups = {group.name: set(group.members) for group in guarded.access.groups()}
    assert groups["sales"] == {"alice", "bob"}
    entries = guarded.access.entries(queue="work").entries
    assert {entry.subject: set(entry.rights) for entry in entries}["worker@10.0.0.5"] == {
        "peek",
        "push",
        "pop",
    }


def test_events_go_where_they_went(guarded: Session) -> None:
    applied(guarded, convert_realm(REALM.read_bytes(), "realm.xml"))
    orders = guarded.channels.get("eu/orders")

    orders.publish_many(
        [Event(bytes([price]), properties={"price": price, "sku": price}) for price in (1, 7, 120)]
    )

    assert [event.data for event in guarded.queues.get("work").peek(9)] == [bytes([120])]
    assert len(guarded.queues.get("archive").peek(9)) == 3
    assert orders.durables.get("billing").info().outstanding == 2


@pytest.mark.parametrize(
    ("old_type", "becomes"),
    [
        ("SIMPLE_TYPE", "reliable"),
        ("OFF_HEAP_TYPE", "reliable"),
        ("OFFHEAP_TYPE", "reliable"),
        ("PAGED_TYPE", "mixed"),
        ("TRANSIENT_TYPE", "transient"),
        ("Off-heap", "reliable"),
        ("NEW_TYPE", "mixed"),
    ],
)
def test_a_removed_type_becomes_another_and_is_named(old_type: str, becomes: str) -> None:
    made = converted(channel("c", type=old_type), queue("q", type=old_type))

    stores = {store.name: store.definition.type for store in made.topology().stores}
    assert stores == {"c": becomes, "q": becomes}
    assert f"channel c: type {old_type}" in reports(made).replace("'", "")
    assert made.warnings == 2


@pytest.mark.parametrize("type_name", ["RELIABLE_TYPE", "PERSISTENT_TYPE", "MIXED_TYPE", "Mixed"])
def test_a_type_that_both_have_has_no_difference(type_name: str) -> None:
    made = converted(channel("c", type=type_name))

    assert made.topology().stores[0].definition.type in type_name.lower()
    assert made.differences == []


@pytest.mark.parametrize(
    ("attribute_text", "becomes", "says"),
    [
        ('type="Shared"', "shared", ""),
        ('type="SERIAL_TYPE"', "serial", ""),
        ('shared="true"', "shared", ""),
        ("", "exclusive", ""),
        ('type="Priority"', "exclusive", "a second client is refused"),
        ('priority="true"', "exclusive", "a second client is refused"),
        ('type="Shared-Queued"', "shared", "served at the same time"),
        ('type="odd"', "exclusive", "it is not known"),
        ('type="Shared" lastEID="17"', "shared", "lasteid 17: left out"),
    ],
)
def test_a_durable_has_the_type_that_is_left_of_its_own(
    attribute_text: str, becomes: str, says: str
) -> None:
    made = converted(channel("c", f'<DurableEntry name="d" {attribute_text}/>', type="Mixed"))

    (durable,) = made.topology().stores[0].durables
    assert durable.type == becomes
    assert says in reports(made)
    assert bool(made.differences) == bool(says)


@pytest.mark.parametrize(
    ("properties", "storage", "says"),
    [
        ('Priority="soon"', {"priority": 4}, "priority soon: left out"),
        ('Priority="12"', {"priority": 9}, "priority 12: written as 9"),
        ('MultiFileEventsPerSpindle="x"', {"events_per_spindle": 50_000}, "spindle x: left out"),
        ('MultiFileEventsPerSpindle="0"', {"events_per_spindle": 0}, ""),
        ('SyncBatchTime="99999999"', {"sync_batch_time": 60_000}, "written as 60000"),
        ('SyncBatchTime="0"', {"sync_batch_time": 2}, ""),
        ('SyncMaxBatchSize="9999999999"', {"sync_max_batch_size": 1 << 30}, "written as"),
        ('ReadBufferSize="9999999999"', {"read_buffer_size": 16 << 20}, "written as 16777216"),
        ('ReadBufferSize="0"', {"read_buffer_size": 1 << 20}, ""),
        (
            'EnableReadBuffering="true" ReadBufferSize="1048577"',
            {"read_buffer_size": 1_048_577},
            "",
        ),
        (
            'EnableReadBuffering="false" ReadBufferSize="1048577"',
            {"read_buffer_size": 1 << 20},
            "",
        ),
    ],
)
def test_a_store_property_is_within_its_bounds(
    properties: str, storage: dict[str, int], says: str
) -> None:
    made = converted(channel("c", f"<StorePropertiesEntry {properties}/>", type="Mixed"))

    definition = made.topology().stores[0].definition
    assert {name: getattr(definition.storage, name) for name in storage} == storage
    assert says in reports(made)
    assert bool(made.differences) == bool(says)


@pytest.mark.parametrize(
    ("entries", "says"),
    [
        ([channel("c", type="Mixed", TTL="soon")], "channel c: ttl soon: left out"),
        ([channel("c", type="Mixed", TTL="-5")], "written as 0"),
        ([channel("c", type="Mixed", capacity="9" * 19)], "written as 2147483646"),
        ([channel("c", type="Mixed", capacity="9" * 30)], "it is not a number"),
        ([channel("c", type="Mixed", odd="1")], "odd 1: left out"),
        ([channel("", type="Mixed")], "left out: '' is empty"),
        ([channel("*", type="Mixed")], "'*' alone is a wildcard"),
        ([channel("c", type="Mixed"), queue("/c", type="Mixed")], "has the name c already"),
        ([channel("c", type="Mixed", mergeEngine="true")], "it needs one publish key"),
        ([channel("c", type="Mixed", deadEventStore="none")], "not in the topology"),
        ([channel("c", type="Mixed", deadEventStore="c")], "would come back: c -> c"),
        ([queue("q", '<DurableEntry name="d"/>', type="Mixed")], "only channels have durables"),
        ([channel("c", '<DurableEntry name="d" selector="a >"/>', type="Mixed")], "left out"),
        ([channel("c", type="Mixed"), '<JoinEntry from="c" to="x"/>'], "x is not in the topology"),
        ([channel("c", '<JoinEntry to="c"/>', type="Mixed")], "to another store"),
        (
            [queue("q", type="Mixed"), queue("r", type="Mixed"), '<JoinEntry from="q" to="r"/>'],
            "a join leads from a channel",
        ),
        (['<RealmACLEntry name="a b" host="*" fullControl="true"/>'], "left out with its user"),
        (['<RealmACLEntry name="a" host="web 1" fullControl="true"/>'], "is not a host"),
        (['<SecurityGroupEntry name="a:b"/>'], "not a valid name of a group"),
        (["<DataGroupEntry/>", "<DataGroupEntry/>"], "2 elements DataGroupEntry: use channels"),
        (["<JNDIEntry/>"], "JNDIEntry: penstock topology jndi writes a jndi.properties"),
        (
            [channel("c", '<DurableEntry name="d" selector="a = 1"/>', type="Mixed")],
            "each subscription to an exclusive durable brings its own",
        ),
        (["<Odd/>"], "Odd: left out"),
        ([channel("c", "<Odd/>", type="Mixed")], "Odd: left out"),
    ],
)
def test_what_has_no_counterpart_is_named(entries: list[str], says: str) -> None:
    made = converted(*entries)

    made.topology()
    assert says in reports(made)
    assert made.warnings


def test_selectors_of_durables_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_module, "DURABLE_SELECTORS_CHARACTERS_MAX", 12)
    durables = [
        f'<DurableEntry name="d{number}" type="Shared" selector="a = {number}"/>'
        for number in range(3)
    ]

    made = converted(channel("c", *durables, type="Mixed"), channel("e", *durables, type="Mixed"))

    counts = [[durable.name for durable in store.durables] for store in made.topology().stores]
    assert counts == [["d0", "d1"], ["d0", "d1"]]
    assert "durable d2 of c: left out: the selectors of the durables of c would" in reports(made)


def test_without_access_nothing_is_said_about_it() -> None:
    content = (
        '<NirvanaRealm><RealmACLEntry name="a" host="web" odd="true"/>'
        '<SecurityGroupEntry name="a:b"/></NirvanaRealm>'
    )

    made = convert_realm(content.encode(), "realm.xml", with_access=False)

    assert made.differences == []
    assert (made.topology().users, made.topology().groups, made.topology().grants) == ((), (), ())


ENTITIES = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 12))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "this is not XML"),
        (b"\x00\xff", "this is not XML"),
        (b"<NirvanaRealm>", "this is not XML"),
        (b"<Realm/>", "realm.xml:1: the root is Realm"),
        (
            f'<!DOCTYPE r [<!ENTITY e0 "x">{ENTITIES}]><NirvanaRealm a="&e11;"/>'.encode(),
            "entities are not allowed",
        ),
        (
            b'<!DOCTYPE r SYSTEM "file:///etc/passwd"><NirvanaRealm/>',
            "entities are not allowed",
        ),
        (
            b'<!DOCTYPE r [<!ENTITY x SYSTEM "file:///etc/passwd">]><NirvanaRealm>&x;</NirvanaRealm>',
            "entities are not allowed",
        ),
        (b"<NirvanaRealm>&x;</NirvanaRealm>", "undefined entity"),
        (b'<?xml version="1.0" encoding="odd"?><NirvanaRealm/>', "this is not XML"),
        (
            b"<NirvanaRealm>" + b"<a>" * 100 + b"</a>" * 100 + b"</NirvanaRealm>",
            "nested too deep; at most 100",
        ),
        (b"<NirvanaRealm>" + b"<a>" * 100_000, "nested too deep"),
    ],
    ids=range(11),
)
def test_hostile_xml_is_refused(content: bytes, says: str) -> None:
    with (
        counted_calls("_start") as elements,
        pytest.raises(InvalidArgument, match=says),
    ):
        convert_realm(content, "realm.xml")

    assert elements.count <= 101, "the rest is not parsed"


def test_elements_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(realm_xml, "ELEMENTS_MAX", 3)

    with pytest.raises(InvalidArgument, match="more than 3 elements"):
        convert_realm(b"<NirvanaRealm><a/><b/><c/></NirvanaRealm>", "realm.xml")


def test_names_cannot_forge_a_line() -> None:
    made = converted(
        '<ChannelEntry name="a&#10;[[queue]]&#10;" type="Mixed"/>',
        '<RealmACLEntry name="x&#10;y" fullControl="true"/>',
    )

    assert parse(to_toml(made.topology(), remark=remark)).stores == ()
    assert all("\n" not in str(difference) for difference in made.differences)


# --- any export -----------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "/a", "eu/x", "*", "größe", "a::b", "p q", "x" * 300])
TYPES = st.sampled_from(["RELIABLE_TYPE", "MIXED_TYPE", "TRANSIENT_TYPE", "PAGED_TYPE", "?"])
VALUES = st.sampled_from(["0", "1", "9", "true", "false", "-1", "99999999999", "soon", ""])
STORE_ATTRIBUTES = st.dictionaries(
    st.sampled_from(["TTL", "capacity", "EID", "jmsEngine", "mergeEngine", "odd"]), VALUES
)
PROPERTIES = st.dictionaries(
    st.sampled_from(
        [
            "HonorCapacityWhenFull",
            "SyncOnEachWrite",
            "SyncMaxBatchSize",
            "SyncBatchTime",
            "EnableCaching",
            "CacheOnReload",
            "Priority",
            "MultiFileEventsPerSpindle",
            "ReadBufferSize",
            "StampDictionary",
        ]
    ),
    VALUES,
    max_size=4,
)


def element(tag: str, attributes: dict[str, str]) -> str:
    attribute_text = " ".join(f"{key}={quoteattr(value)}" for key, value in attributes.items())
    return f"<{tag} {attribute_text}/>"


PARTS = st.one_of(
    PROPERTIES.map(lambda attributes: element("StorePropertiesEntry", attributes)),
    st.builds(
        lambda name, depth: element("ChannelKeyEntry", {"keyName": name, "keyDepth": depth}),
        NAMES,
        VALUES,
    ),
    st.builds(
        lambda name, kind, selector: element(
            "DurableEntry", {"name": name, "type": kind, "selector": selector}
        ),
        NAMES,
        st.sampled_from(["Shared", "Serial", "Priority", ""]),
        st.sampled_from(["", "a>1", "b IN ('x','y')", "a >"]),
    ),
    st.builds(
        lambda name, host, right: element(
            "ChannelACLEntry", {"name": name, "host": host, right: "true"}
        ),
        NAMES,
        st.sampled_from(["*", "localhost", "a b", ""]),
        st.sampled_from(["subscribe", "publish", "fullControl", "pop", "odd"]),
    ),
)


@st.composite
def stores(draw: st.DrawFn) -> str:
    build = draw(st.sampled_from([channel, queue]))
    attributes = draw(STORE_ATTRIBUTES) | {"deadEventStore": draw(st.one_of(NAMES, st.just("")))}
    return build(draw(NAMES), *draw(st.lists(PARTS, max_size=4)), type=draw(TYPES), **attributes)


JOINS = st.builds(
    lambda source, to, text: element("JoinEntry", {"from": source, "to": to, "filter": text}),
    NAMES,
    NAMES,
    st.sampled_from(["", "a=1", "((a = 1))", "a >"]),
)


@pytest.mark.slow
@settings(max_examples=examples(60), deadline=None)
@given(st.lists(stores(), max_size=4), st.lists(JOINS, max_size=3))
def test_whatever_is_drawn_applies_or_the_reason_is_named(
    drawn: list[str], joins: list[str]
) -> None:
    made = converted(*drawn, *joins)

    with penstock.Realm(access__mode="mandatory", **QUICK) as realm, realm.connect() as session:
        applied(session, made)
        assert len(session.joins.list()) + reports(made).count("join ") >= len(joins)
        existing = {*session.channels.list(), *session.queues.list()}
    assert existing == {store.name for store in made.topology().stores}
    assert len(existing) + reports(made).count("left out: ") >= len(drawn)


def test_the_command_writes_a_file_that_apply_takes(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    with penstock.Realm() as realm:
        run = commands_of(realm)
        made = run("topology", "from-um", str(REALM), str(file), "--no-access", "--strict")

        assert made.exit_code == 3
        assert "6 channels, 2 queues, 3 durables, 2 joins, 0 grants; 9 warnings" in made.stderr
        assert "# durable billing of eu/orders\n[[channel.durable]]" in file.read_text()
        assert run("apply", str(file)).exit_code == 0
        assert run("apply", str(file), "--check", "--prune").exit_code == 0

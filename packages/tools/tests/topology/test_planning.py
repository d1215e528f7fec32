"""The differences between a file and a realm, and the steps that remove them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from packages.mqtt.tests.persistent_sessions import back
from penstock.client.sync.sync import Session
from penstock_core.api.access import Me
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_tools.topology import Found, Plan, apply, look, parse, plan, to_toml, topology_of
from penstock_tools.topology.inventory import ExistingStore
from tests.access.realms import QUICK


@pytest.fixture
def session() -> Iterator[Session]:
    with penstock.Realm() as realm, realm.connect() as opened:
        yield opened


@pytest.fixture
def guarded() -> Iterator[Session]:
    """A session with a realm that keeps users; ``admin`` is there from the start."""
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm, realm.connect() as opened:
        yield opened


def planned(session: Session, text: str, *, prune: bool = False) -> Plan:
    wanted = parse(text, file="shop.toml")
    return plan(wanted, look(session, wanted), prune=prune)


def applied(session: Session, text: str, *, prune: bool = False) -> Plan:
    made = planned(session, text, prune=prune)
    apply(session, made)
    return made


def shown(plan: Plan) -> list[str]:
    return [f"{step.sign} {step.what}" for step in plan.steps]


ORDERS = """
[[channel]]
name = "orders"
ttl = "1h"
dead_event_store = "dead"

  [[channel.durable]]
  name = "billing"
  type = "serial"
  max_deliveries = 3

[[channel]]
name = "dead"

[[queue]]
name = "work"
max_deliveries = 2
dead_event_store = "dead"

[[join]]
source = "orders"
destination = "work"
selector = "price > 5"
"""


def test_what_is_missing_is_created_each_after_what_it_needs(session: Session) -> None:
    first = applied(session, ORDERS)

    assert shown(first) == [
        "+ channel dead",
        "+ queue work",
        "+ channel orders",
        "+ durable billing of orders",
        "+ join orders -> work",
    ]
    orders = session.channels.get("orders")
    assert orders.info().definition.ttl == 3_600_000
    assert orders.durables.get("billing").info().max_deliveries == 3
    assert session.joins.list()[0].selector == "price > 5"


def test_a_second_time_there_is_nothing_to_do(session: Session) -> None:
    applied(session, ORDERS)

    for prune in (False, True):
        assert planned(session, ORDERS, prune=prune) == Plan()


def test_a_plan_alone_changes_nothing(session: Session) -> None:
    planned(session, ORDERS)

    assert session.channels.list() == []


@pytest.mark.spec("C3")
def test_attributes_are_changed_in_place_and_those_left_out_are_as_usual(session: Session) -> None:
    session.channels.create("orders", capacity=5, storage={"sync": "none"}).publish(b"one")
    text = "[[channel]]\nname = 'orders'\nttl = '5m'\nstorage = { priority = 7 }\n"

    (step,) = applied(session, text).steps

    assert step.details == (
        "ttl 0 -> '5m'",
        "capacity 5 -> 0",
        "storage.sync 'none' -> 'group'",
        "storage.priority 4 -> 7",
    )
    info = session.channels.get("orders").info()
    assert (info.events, info.definition.ttl, info.definition.capacity) == (1, 300_000, 0)
    assert (info.definition.storage.sync, info.definition.storage.priority) == ("group", 7)
    assert planned(session, text) == Plan()


@pytest.mark.parametrize(
    ("before", "after", "loses"),
    [
        ({}, "capacity = 2", "the oldest 3 of 5 events"),
        ({}, "capacity = 9", ""),
        ({}, "capacity = 2\nstorage = { honour_capacity = true }", ""),
        ({"ttl": 9_000}, "ttl = '5s'", "events older than 5s"),
        ({"ttl": 9_000}, "ttl = '10s'", ""),
        ({}, "ttl = '5s'", "events older than 5s"),
        ({"retain_consumed": True}, "", "events that every durable has acknowledged"),
    ],
)
def test_a_change_that_removes_events_says_so(
    session: Session, before: dict[str, object], after: str, loses: str
) -> None:
    orders = session.channels.create("orders", **before)  # type: ignore[arg-type]
    orders.publish_many([penstock.Event(b"one")] * 5)

    (step,) = planned(session, f"[[channel]]\nname = 'orders'\n{after}\n").steps

    assert step.loses == loses


def test_what_cannot_be_changed_in_place_is_told_with_what_would_be_lost(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.publish_many([penstock.Event(b"one")] * 3)
    orders.durables.create("billing")
    session.queues.create("work")
    session.joins.create("orders", "work")
    text = "[[channel]]\nname = 'orders'\ntype = 'persistent'\n[[channel]]\nname = 'work'\n"

    plan_ = planned(session, text + "[[channel]]\nname = 'more'\n")

    assert [(step.what, step.details, step.loses, step.remedy) for step in plan_.immovable] == [
        (
            "channel orders",
            ("type 'mixed' -> 'persistent'",),
            "3 events, durable billing, the join to work",
            "penstock channel delete orders",
        ),
        (
            "queue work",
            ("is a queue, not a channel",),
            "0 events",
            "penstock queue delete work",
        ),
    ]
    with pytest.raises(IllegalState, match="channel orders, queue work cannot be changed in place"):
        apply(session, plan_)
    assert session.channels.list() == ["orders"]


def test_a_durable_or_join_of_another_kind_cannot_be_changed_in_place(session: Session) -> None:
    orders = session.channels.create("orders")
    orders.durables.create("billing", type="serial", strict_order=True)
    orders.publish(b"one")
    session.queues.create("work")
    session.joins.create("orders", "work", selector="price > 5")

    durable, join = planned(
        session,
        "[[channel]]\nname = 'orders'\n[[channel.durable]]\nname = 'billing'\n"
        "[[join]]\nsource = 'orders'\ndestination = 'work'\n",
    ).immovable

    assert durable.details == ("type 'serial' -> 'shared'", "strict_order true -> false")
    assert durable.loses == "its position, and the list of its 1 outstanding events"
    assert durable.remedy == "penstock durable delete orders billing"
    assert join.details == ("selector 'price > 5' -> ''",)


def test_what_the_file_does_not_name_stays_unless_it_is_pruned(session: Session) -> None:
    applied(session, ORDERS)
    text = "[[channel]]\nname = 'orders'\nttl = '1h'\n"

    assert planned(session, f"{text}dead_event_store = 'dead'\n").unnamed == (
        "join orders -> work",
        "channel dead",
        "durable billing of orders",
        "queue work",
    )

    pruned = applied(session, text, prune=True)

    assert shown(pruned) == [
        "- join orders -> work",
        "- durable billing of orders",
        "- queue work",
        "~ channel orders",
        "- channel dead",
    ]
    assert all(step.loses for step in pruned.steps if step.sign == "-")
    assert (session.channels.list(), session.queues.list()) == (["orders"], [])
    assert planned(session, text, prune=True) == Plan()


@pytest.mark.spec("R3")
def test_what_is_temporary_is_neither_pruned_nor_written(session: Session) -> None:
    work = session.queues.create("work")
    with pytest.raises(penstock.NoReply):
        work.request(b"", 0.5)
    assert session.queues.list() == ["work"]

    text = to_toml(topology_of(look(session)), heading="The shop")

    assert "temp-reply-" not in text
    assert planned(session, text, prune=True) == Plan()


def test_a_join_is_pruned_by_itself(session: Session) -> None:
    applied(session, ORDERS)
    without = ORDERS[: ORDERS.index("[[join]]")]

    assert shown(applied(session, without, prune=True)) == ["- join orders -> work"]
    assert session.joins.list() == []


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "[[channel]]\nname = 'a'\ndead_event_store = 'b'\n",
            "shop.toml:3: channel a: the dead event store b does not exist",
        ),
        (
            "[[channel]]\nname = 'a'\ndead_event_store = 'b'\n"
            "[[channel]]\nname = 'b'\ndead_event_store = 'a'\n",
            "shop.toml:3: channel a: the dead event store b does not exist",
        ),
        ("[[channel]]\nname = 'a'\ntype = 'mied'\n", "shop.toml:3: channel a: 'mied' is not a cha"),
        (
            "[[channel]]\nname = 'a'\n\n[[channel.durable]]\nname = 'b'\ntype = 'exclusive'\n"
            "strict_order = true\n",
            "durable b of a: a durable of type exclusive cannot have strict_order",
        ),
        (
            "[[channel]]\nname = 'a'\n[[join]]\nsource = 'a'\ndestination = 'b'\n",
            "shop.toml:3: join a -> b: there is no channel or queue b",
        ),
        (
            "[[queue]]\nname = 'a'\nmax_deliveries = 3\n",
            "shop.toml:3: queue a: max_deliveries needs a dead_event_store",
        ),
    ],
)
def test_what_no_realm_can_be_is_refused_before_anything_is_changed(
    session: Session, text: str, says: str
) -> None:
    with pytest.raises(InvalidArgument, match=says):
        planned(session, f"{text}[[channel]]\nname = 'fine'\n")


def test_what_is_still_needed_is_not_pruned(session: Session) -> None:
    session.channels.create("dead")
    session.channels.create("orders", dead_event_store="dead")
    text = "[[channel]]\nname = 'orders'\ndead_event_store = 'dead'\n"

    with pytest.raises(
        InvalidArgument,
        match="channel dead is not in the file, but cannot be deleted: dead is the d",
    ):
        planned(session, text, prune=True)
    assert planned(session, text) == Plan(unnamed=("channel dead",))


def test_stores_whose_dead_event_stores_change_places_are_edited_in_order(session: Session) -> None:
    session.channels.create("b")
    session.channels.create("a", dead_event_store="b")
    text = "[[channel]]\nname = 'b'\ndead_event_store = 'a'\n[[channel]]\nname = 'a'\n"

    assert shown(applied(session, text)) == ["~ channel a", "~ channel b"]
    assert planned(session, text) == Plan()


def inventory_of(**stores: dict[str, object]) -> Found:
    """A realm with these channels."""
    me = Me(user="alice", host="localhost")
    return Found(
        realm="shop",
        me=me,
        stores={
            name: ExistingStore(
                kind="channel",
                name=name,
                definition=Definition(**attributes),  # type: ignore[arg-type]
            )
            for name, attributes in stores.items()
        },
    )


@pytest.mark.spec("C5")
def test_whether_a_store_is_cluster_wide_is_left_alone_unless_it_is_told() -> None:
    inventory = inventory_of(orders={"cluster_wide": True}, late={"cluster_wide": False})
    text = "[[channel]]\nname = 'orders'\n"

    assert inventory.is_cluster
    assert plan(parse(text), inventory).steps == ()
    assert plan(parse(f"{text}cluster_wide = true\n"), inventory).steps == ()
    (immovable,) = plan(parse(f"{text}cluster_wide = false\n"), inventory).immovable
    assert immovable.details == ("cluster_wide true -> false",)


@pytest.mark.spec("N1")
def test_what_a_cluster_has_as_usual_is_not_written_so_that_one_machine_takes_it_too() -> None:
    inventory = inventory_of(orders={"cluster_wide": True}, late={"cluster_wide": False})

    assert [store.definition.cluster_wide for store in topology_of(inventory).stores] == [
        False,
        None,
    ]


@pytest.mark.spec("C5")
def test_a_realm_without_a_cluster_refuses_what_is_cluster_wide(session: Session) -> None:
    session.channels.create("more")
    text = "[[channel]]\nname = 'orders'\ncluster_wide = true\n"

    with pytest.raises(InvalidArgument, match=r"shop.toml:3: channel orders: .*cluster-wide"):
        planned(session, text)


# --- users, groups and rights -----------------------------------------------------------------

PEOPLE = """
[[channel]]
name = "eu/orders"

[[user]]
name = "alice"

[[group]]
name = "sales"
members = ["alice", "bob"]

[[grant]]
subject = "group:sales"
rights = ["access"]

[[grant]]
channel = "eu/*"
subject = "alice@*"
rights = ["subscribe", "publish"]
"""


TOPICS = """
[[channel]]
name = "temps"
topics = ["plant/{site}/temp", "x/+"]
payload = "json"

[[grant]]
topic = "dev/%c/#"
subject = "alice@*"
rights = ["publish"]
"""


@pytest.mark.spec("M12", "M15")
def test_topics_and_rights_on_them_are_as_the_file_says(guarded: Session) -> None:
    assert shown(applied(guarded, TOPICS)) == [
        "+ channel temps",
        "+ rights of alice@* on topic dev/%c/#",
    ]
    for prune in (False, True):
        assert planned(guarded, TOPICS, prune=prune).steps == ()

    assert guarded.channels.get("temps").info().definition.topics == ("plant/{site}/temp", "x/+")
    pruned = applied(guarded, TOPICS.partition("[[grant]]")[0] + "[[user]]\nname='a'\n", prune=True)
    assert "- rights of alice@* on topic dev/%c/#" in shown(pruned)
    assert guarded.access.topics() == []


def test_users_groups_and_rights_are_as_the_file_says(guarded: Session) -> None:
    first = applied(guarded, PEOPLE)

    assert shown(first) == [
        "+ channel eu/orders",
        "+ user alice",
        "+ group sales",
        "+ rights of group:sales on the realm",
        "+ rights of alice@* on channel eu/*",
    ]
    assert not guarded.access.users()[1].has_password
    for prune in (False, True):
        assert planned(guarded, PEOPLE, prune=prune).steps == ()

    changed = PEOPLE.replace('"bob"', '"carol"').replace('"subscribe", "publish"', '"subscribe"')

    assert [step.details for step in applied(guarded, changed).steps] == [
        ("add carol", "remove bob"),
        ("revoke publish",),
    ]
    assert planned(guarded, changed).steps == ()


def test_a_password_stays_as_it_is(guarded: Session) -> None:
    guarded.access.create_user("alice", "correct horse")

    applied(guarded, PEOPLE)

    alice = next(user for user in guarded.access.users() if user.name == "alice")
    assert alice.has_password


def test_people_are_pruned_but_for_who_may_administer(guarded: Session) -> None:
    applied(guarded, PEOPLE)
    guarded.access.create_user("dave")
    guarded.access.create_group("guests", ["dave"])
    guarded.access.grant("dave@*", "access")
    guarded.access.grant("group:guests", "subscribe", channel="eu/orders")

    pruned = applied(guarded, PEOPLE, prune=True)

    assert shown(pruned) == [
        "- rights of group:guests on channel eu/orders",
        "- rights of dave@* on the realm",
        "- group guests",
        "- user dave",
    ]
    assert pruned.kept == ("rights of admin@* on the realm", "user admin")
    assert {user.name for user in guarded.access.users()} == {"admin", "alice"}


def test_a_file_without_people_leaves_them_alone(guarded: Session) -> None:
    applied(guarded, PEOPLE)

    assert planned(guarded, "[[channel]]\nname = 'eu/orders'\n", prune=True) == Plan()


def test_rights_on_what_is_not_there_are_refused(guarded: Session) -> None:
    text = "[[channel]]\nname='a'\n[[grant]]\nqueue = 'a'\nsubject = 'x@*'\nrights = ['pop']\n"

    with pytest.raises(InvalidArgument, match=r"shop.toml:4: .*neither the file nor the realm has"):
        planned(guarded, text)


def test_a_realm_that_keeps_no_users_says_so_before_anything_is_changed(session: Session) -> None:
    with pytest.raises(InvalidArgument, match=r"shop.toml:\d+: the realm keeps no users.* is off"):
        planned(session, PEOPLE)


def test_what_is_there_is_written_and_read_again(guarded: Session) -> None:
    applied(guarded, PEOPLE + ORDERS)
    guarded.channels.get("orders").durables.create("late", start="latest", persistent=False)
    written = to_toml(topology_of(look(guarded)), heading="The shop")

    assert written.startswith("# The shop\n\n[[channel]]\n")
    assert planned(guarded, written, prune=True).steps == ()
    with (
        penstock.Realm(access__mode="mandatory", **QUICK) as second_realm,
        second_realm.connect() as session,
    ):
        applied(session, written)
        again = to_toml(topology_of(look(session)), heading="The shop")
    assert again == written


OVER = """
[[durable]]
pattern = "orders/*"
name = "billing"
type = "serial"
ack_timeout = "30s"

[[channel]]
name = "orders/eu"

[[channel]]
name = "trades"
"""


@pytest.mark.spec("D22")
def test_a_durable_over_a_pattern_is_made_kept_written_and_pruned(session: Session) -> None:
    session.channels.create("orders/us").durables.create("billing", type="serial", ack_timeout=30)

    first = applied(session, OVER)
    session.channels.create("orders/asia")

    assert "+ durable billing over orders/*" in shown(first)
    names = {
        name: [durable.name for durable in session.channels.get(name).durables.list()]
        for name in session.channels.list()
    }
    assert names == {name: ["billing"] * name.startswith("orders/") for name in names}
    assert shown(planned(session, OVER)) == []
    written = to_toml(topology_of(look(session)))
    assert written.count("billing") == 1
    assert '[[durable]]\npattern = "orders/*"\nname = "billing"' in written
    assert planned(session, written, prune=True) == Plan()

    differing = planned(session, OVER.replace("serial", "shared"))
    (immovable,) = differing.immovable
    assert immovable.what == "durable billing over orders/*"
    assert immovable.remedy.startswith("penstock durable delete")
    assert immovable.loses == "its position on 3 channels"

    rest = "".join(OVER.partition("[[channel]]")[1:])
    kept = planned(session, rest)
    assert "durable billing over orders/*" in kept.unnamed
    assert not any("durable billing of" in text for text in kept.unnamed)
    pruned = applied(session, rest, prune=True)
    assert "- durable billing over orders/*" in shown(pruned)
    assert session.durables.list() == []
    assert session.channels.get("orders/eu").durables.list() == []


@pytest.mark.spec("D22")
def test_what_a_realm_would_refuse_of_a_pattern_is_refused_before(session: Session) -> None:
    second_durable = session.channels.create("orders/us").durables.create("billing")
    with pytest.raises(InvalidArgument, match=r"shop.toml:5: durable billing over orders.*another"):
        planned(session, OVER)
    assert second_durable.info().type == "shared"
    with pytest.raises(InvalidArgument, match="cannot be on"):
        planned(
            session,
            OVER.replace("orders/*", "tr*").replace('"30s"', '"30s"\nmax_deliveries = 3'),
        )


@pytest.mark.spec("A6")
def test_what_a_realm_makes_for_mqtt_is_neither_pruned_nor_exported() -> None:
    file = '[[channel]]\nname = "orders"\n\n[[channel]]\nname = "lines"\ntopics = ["line/#"]\n'
    with penstock.Realm() as realm, realm.connect() as session:
        url = realm.listen_mqtt()
        applied(session, file)
        with back(url, "sensor", present=False) as client:
            client.subscribe("line/#", qos=1)
            client.publish("a", b"1", retain=True)

        assert planned(session, file, prune=True) == Plan()
        assert [store.name for store in topology_of(look(session)).stores] == ["lines", "orders"]
        older = file + '[[channel]]\nname = "mqtt-sessions"\nkeys = { entry = 1 }\n'
        assert planned(session, older, prune=True) == Plan()

        applied(session, "", prune=True)
        assert session.channels.list() == ["mqtt"]
        assert [mqtt_session.client_id for mqtt_session in session.mqtt.sessions()] == ["sensor"]
        assert [message.data for message in session.mqtt.retained()] == [b"1"]
        with pytest.raises(IllegalState, match="the channel of all topics of MQTT"):
            session.channels.delete("mqtt")

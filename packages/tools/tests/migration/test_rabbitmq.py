"""Definitions of RabbitMQ as topologies: applied, a realm has what they say or the reason is
named."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import penstock
from penstock import Event
from penstock.client.sync.sync import Session
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.migration import conversion as conversion_module
from penstock_tools.migration import rabbitmq, regular_expressions
from penstock_tools.migration.conversion import Conversion, read_source, remark
from penstock_tools.migration.rabbitmq import KEY_NAME, convert_definitions
from penstock_tools.topology import Plan, apply, look, parse, plan, to_toml
from tests.access.realms import QUICK
from tests.commands import commands_of
from tests.counting import counted_calls
from tests.thorough import examples

DEFINITIONS = Path(__file__).with_name("definitions.json")


@pytest.fixture
def guarded() -> Iterator[Session]:
    """A session with a realm that keeps users."""
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm, realm.connect() as opened:
        yield opened


def converted(
    document: dict[str, Any], *, virtual_host: str = "", key_name: str = KEY_NAME
) -> Conversion:
    return convert_definitions(
        json.dumps(document).encode(),
        "definitions.json",
        virtual_host=virtual_host,
        key_name=key_name,
    )


def applied(session: Session, made: Conversion) -> None:
    """The conversion as a file, applied; a second time there is nothing to do."""
    wanted = parse(to_toml(made.topology(), remark=remark), file="shop.toml")
    apply(session, plan(wanted, look(session, wanted)))
    # Rights of a realm that nobody granted here stay out of the comparison.
    assert plan(wanted, look(session, wanted)).steps == ()


def reports(made: Conversion) -> str:
    return "\n".join(str(difference) for difference in made.differences)


def test_a_realm_has_the_stores_the_joins_and_the_rights_of_the_definitions(
    guarded: Session,
) -> None:
    applied(guarded, convert_definitions(DEFINITIONS.read_bytes(), "definitions.json"))

    assert guarded.queues.list() == ["billing.new", "billing.urgent", "failed", "orders", "retry"]
    channels = ["amq.fanout", "audit", "by-header", "dead", "orders.exchange", "shards"]
    assert guarded.channels.list() == channels
    new = guarded.queues.get("billing.new").info().definition
    assert (new.type, new.ttl, new.capacity) == ("persistent", 60_000, 1_000)
    assert (new.max_deliveries, new.dead_event_store) == (5, "failed")
    assert new.storage.honour_capacity
    assert guarded.queues.get("orders").info().definition.type == "reliable"
    audit = guarded.channels.get("audit").info().definition
    assert (audit.ttl, audit.retain_consumed) == (7 * 86_400_000, True)
    assert {(join.source, join.destination): join.selector for join in guarded.joins.list()}[
        "orders.exchange", "billing.new"
    ] == "tag = 'eu.changed' OR tag LIKE '%.new' AND tag NOT LIKE '%.%.%'"
    users = {user.name for user in guarded.access.users()}
    assert {"admin", "billing", "watch"} <= users
    entries = guarded.access.entries(queue="billing.urgent").entries
    rights = {entry.subject: set(entry.rights) for entry in entries}
    assert rights["billing@*"] == {"purge", "peek", "pop"}


def test_events_go_where_messages_went(guarded: Session) -> None:
    applied(guarded, convert_definitions(DEFINITIONS.read_bytes(), "definitions.json"))
    orders = guarded.channels.get("orders.exchange")

    for key in ("eu.new", "eu.de.new", "eu.changed", "us.urgent.now"):
        orders.publish(key.encode(), tag=key)
    orders.publish(b"broken", tag="eu.x", properties={"kind": "broken"})

    def held(queue: str) -> list[bytes]:
        return [event.data for event in guarded.queues.get(queue).peek(9)]

    assert held("billing.new") == [b"eu.new", b"eu.changed"]
    assert held("billing.urgent") == [b"us.urgent.now"]
    assert held("failed") == [b"broken"], "from exchange to exchange, and by its header"
    assert len(list(guarded.channels.get("audit").browse())) == 5
    assert orders.info().events == 0, "an exchange keeps nothing"


def test_a_dead_letter_is_routed_by_the_joins_of_its_exchange(guarded: Session) -> None:
    made = converted(
        {
            "queues": [
                {"name": "work", "arguments": {"x-message-ttl": 1, "x-dead-letter-exchange": "d"}},
                {"name": "failed"},
            ],
            "exchanges": [{"name": "d", "type": "fanout"}],
            "bindings": [{"source": "d", "destination": "failed"}],
        }
    )
    applied(guarded, made)

    guarded.queues.get("work").push(b"late")

    failed = guarded.queues.get("failed").pop(timeout=30)
    assert failed is not None
    assert failed.data == b"late"
    assert made.differences == []


def test_a_dead_letter_with_a_key_keeps_its_own_behind_a_second_exchange() -> None:
    letters = {"x-dead-letter-exchange": "d", "x-dead-letter-routing-key": "k"}
    made = converted(
        {
            "queues": [{"name": "work", "arguments": letters}, {"name": "failed"}],
            "exchanges": [{"name": "d"}, {"name": "e"}],
            "bindings": [
                {"source": "d", "destination": "e", "destination_type": "exchange"}
                | {"routing_key": "k"},
                {"source": "e", "destination": "failed", "routing_key": "k"},
            ],
        }
    )

    assert made.stores["work"].definition.dead_event_store == "e"
    assert "channel e, but dead events keep their routing key instead of 'k'" in reports(made)


@pytest.mark.parametrize(
    ("name", "arguments", "attributes", "says"),
    [
        ("message-ttl", {"x-message-ttl": 0}, {"ttl": 1}, "written as 1"),
        ("long ttl", {"x-message-ttl": 1 << 62}, {"ttl": 1 << 50}, "written as 1125899906842624"),
        ("huge ttl", {"x-message-ttl": 10**400}, {"ttl": 1 << 50}, "the nearest value"),
        ("text ttl", {"x-message-ttl": "1s"}, {"ttl": 0}, "it is not a number"),
        ("true", {"x-max-length": True}, {"capacity": 0}, "it is not a number"),
        ("length", {"x-max-length": 1 << 40}, {"capacity": 2_147_483_646}, "the nearest value"),
        ("age", {"x-max-age": "3h"}, {"ttl": 10_800_000}, ""),
        ("endless age", {"x-max-age": "9" * 15 + "Y"}, {"ttl": 1 << 50}, "the nearest value"),
        ("odd age", {"x-max-age": "soon"}, {"ttl": 0}, "it is not a number"),
        ("overflow", {"x-overflow": "drop-head"}, {}, ""),
        ("odd overflow", {"x-overflow": {"a": 1}}, {}, "x-overflow {'a': 1}: left out"),
        ("to dlx", {"x-overflow": "reject-publish-dlx"}, {}, "an error for the publisher"),
        ("limit alone", {"x-delivery-limit": 3}, {"max_deliveries": 0}, "needs a dead_event_store"),
        ("no limit", {"x-delivery-limit": -1}, {"max_deliveries": 0}, ""),
        ("unknown", {"x-new-thing": 1}, {}, "not known here"),
        ("lazy", {"x-queue-mode": "lazy"}, {}, "note: queue q: x-queue-mode 'lazy'"),
        ("no exchange", {"x-dead-letter-exchange": "gone"}, {}, "no such exchange"),
        ("no key", {"x-dead-letter-exchange": ""}, {}, "not a queue of the file"),
        ("number", {"x-dead-letter-exchange": 1}, {}, "it is not a text"),
        (
            "itself",
            {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "q"},
            {"dead_event_store": ""},
            "would come back: q -> q",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) and " " in value else None,
)
def test_an_argument_is_an_attribute_or_a_warning(
    name: str, arguments: dict[str, Any], attributes: dict[str, Any], says: str
) -> None:
    del name
    made = converted({"queues": [{"name": "q", "arguments": arguments}]})

    definition = made.topology().stores[0].definition
    assert {key: getattr(definition, key) for key in attributes} == attributes
    assert says in reports(made)
    assert bool(made.differences) == bool(says)


def test_of_two_limits_the_lower_one_holds_and_of_two_policies_the_higher_one() -> None:
    policies = [
        {"name": "low", "pattern": "^q", "definition": {"max-length": 1}},
        {
            "name": "high",
            "pattern": "^q$",
            "priority": 2,
            "apply-to": "queues",
            "definition": {"max-length": 50, "message-ttl": 10, "overflow": "reject-publish"},
        },
        {"name": "streams", "pattern": ".", "priority": 9, "apply-to": "streams"},
    ]
    arguments = {"x-max-length": 70, "x-message-ttl": 5, "x-overflow": "drop-head"}
    made = converted({"policies": policies, "queues": [{"name": "q", "arguments": arguments}]})

    definition = made.topology().stores[0].definition
    assert (definition.capacity, definition.ttl) == (50, 5)
    assert not definition.storage.honour_capacity, "the queue's own argument"


def test_a_delivery_limit_that_is_no_number_is_left_out() -> None:
    letters = {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": "failed"}
    made = converted(
        {
            "queues": [
                {"name": "failed"},
                {"name": "q", "arguments": {**letters, "x-delivery-limit": "many"}},
                {"name": "once", "arguments": {**letters, "x-delivery-limit": 0}},
            ]
        }
    )

    limits = {store.name: store.definition.max_deliveries for store in made.topology().stores}
    assert limits == {"failed": 0, "once": 1, "q": 0}
    assert "x-delivery-limit 'many': left out: it is not a number" in reports(made)


def test_policies_of_one_name_apply_by_their_priority() -> None:
    policies = [
        {"name": "p", "pattern": "q", "priority": 2, "definition": {"max-length": 5}},
        {"name": "p", "pattern": "[qr]", "priority": 1, "definition": {"max-length": 7}},
    ]
    made = converted({"policies": policies, "queues": [{"name": "q"}, {"name": "r"}]})

    assert [store.definition.capacity for store in made.topology().stores] == [5, 7]


def test_a_pattern_that_cannot_be_applied_is_named() -> None:
    policy = {"name": "ha", "pattern": "^(?!amq).*", "definition": {"max-length": 1}}
    made = converted({"policies": [policy], "queues": [{"name": "q"}]})

    assert "warning: policy ha: left out: the pattern '^(?!amq).*' cannot be applied" in (
        reports(made)
    )


def test_one_virtual_host_is_one_realm() -> None:
    document = {"queues": [{"name": "a", "vhost": "/"}, {"name": "b", "vhost": "shop"}]}

    with pytest.raises(InvalidArgument, match="has the virtual hosts '/', 'shop'"):
        converted(document)
    with pytest.raises(InvalidArgument, match="no virtual host 'shops'"):
        converted(document, virtual_host="shops")
    shop = converted(document, virtual_host="shop")
    assert [store.name for store in shop.topology().stores] == ["b"]
    assert "virtual hosts '/': left out" in reports(shop)


def test_routing_keys_may_be_a_property() -> None:
    document = {
        "exchanges": [{"name": "e"}],
        "queues": [{"name": "q"}],
        "bindings": [{"source": "e", "destination": "q", "routing_key": "k"}],
    }

    assert converted(document, key_name="JMSType").topology().joins[0].selector == "JMSType = 'k'"
    with pytest.raises(InvalidArgument, match="'a b' is not a name in selectors"):
        converted(document, key_name="a b")


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "ends too early"),
        (b"[]", "object"),
        (b"\xff", "f.json: "),
        (b'{"queues": 5}', "queues must be a list"),
        (b'{"queues": [5]}', r"queues\[0\]"),
        (b'{"queues": [{}]}', r"queues\[0\]: .*name"),
        (b'{"queues": [{"name": "' + b"x" * 256 + b'"}]}', r"queues\[0\]"),
        (b'{"users": [{"name": "a", "tags": {}}]}', r"users\[0\]"),
        (b'{"parameters": [1]}', "parameters must be a list of objects"),
        (b'{"queues": ' + b"[" * 200 + b"]" * 200 + b"}", "nested too deep"),
        (b'{"queues": [{"name": "a", "arguments": {"x": ' + b'{"y":' * 200, "nested too deep"),
    ],
)
def test_a_file_that_rabbitmq_cannot_have_written_is_refused(content: bytes, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        convert_definitions(content, "f.json")


def test_a_file_may_not_be_endless(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_module, "SOURCE_BYTES_MAX", 10)
    file = tmp_path / "definitions.json"
    file.write_bytes(b" " * 11)

    with pytest.raises(InvalidArgument, match="has more than"):
        read_source(file)
    with pytest.raises(InvalidArgument, match="No such file"):
        read_source(tmp_path / "none")


def test_a_list_may_not_be_endless(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_module, "ENTRIES_MAX", 2)

    with pytest.raises(InvalidArgument, match="3 queues; at most 2"):
        converted({"queues": [{"name": name} for name in "abc"]})
    with pytest.raises(InvalidArgument, match="access rights; at most 2"):
        converted(
            {
                "queues": [{"name": "a"}, {"name": "b"}],
                "users": [{"name": "u", "tags": "administrator"}],
                "permissions": [{"user": "u", "read": "[ab]"}],
            }
        )


def test_hostile_patterns_take_little_work() -> None:
    """A backtracking engine would not end with the first in the life of a machine. The words of
    the second are counted."""
    queues = [{"name": f"{'a' * 200}{number}"} for number in range(50)]
    exchange = {"name": "e", "type": "topic"}
    key = ".".join("a" * 120)
    arguments = {"x-dead-letter-exchange": "e", "x-dead-letter-routing-key": key}
    document = {
        "policies": [{"name": "p", "pattern": "^(a+)+(a|aa)*!$", "definition": {}}],
        "queues": [*queues, {"name": "q", "arguments": arguments}],
        "exchanges": [exchange],
        "bindings": [
            {"source": "e", "destination": "q", "routing_key": ".".join(["#", "a"] * 60 + ["b"])}
        ],
    }

    with counted_calls() as calls:
        made = converted(document)

    assert calls.count < 200_000
    assert "more than 4 # between words" in reports(made)


def test_keys_of_dead_letters_are_not_compared_with_patterns_without_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rabbitmq, "COMPARED_WORDS_MAX", 5_000)
    queues = [
        {
            "name": f"q{number}",
            "arguments": {
                "x-dead-letter-exchange": "e",
                "x-dead-letter-routing-key": f"{number}.x",
            },
        }
        for number in range(100)
    ]
    bindings = [
        {"source": "e", "destination": "failed", "routing_key": f"{number}.#"}
        for number in range(100)
    ]
    document = {
        "queues": [*queues, {"name": "failed"}],
        "exchanges": [{"name": "e", "type": "topic"}],
        "bindings": bindings,
    }

    with counted_calls("matches") as calls:
        made = converted(document)

    targets = [store.definition.dead_event_store for store in made.stores.values()]
    assert (targets.count("failed"), targets.count("e")) == (12, 88)
    assert reports(made).count("check the joins") == 88
    assert calls.count == 12 * 100


def test_patterns_for_every_name_are_not_applied_to_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(regular_expressions, "MATCHES_MAX", 0)
    permissions = [
        {"user": "all", "read": ".*", "write": "^.*$"},
        {"user": "some", "read": "^a", "write": ""},
    ]
    users = [{"name": "all"}, {"name": "some"}]
    made = converted({"queues": [{"name": "a"}], "users": users, "permissions": permissions})

    grants = {(grant.subject, grant.kind) for grant in made.topology().grants}
    assert {("all@*", "queue"), ("all@*", "channel")} <= grants
    assert ("some@*", "queue") not in grants
    assert "permissions of some: read '^a': left out: the file has too many patterns" in (
        reports(made)
    )


def test_a_long_text_of_the_file_is_cut_in_its_warning() -> None:
    policy = {"name": "n" * 999, "pattern": ".*", "definition": {"k" * 999: ["v" * 999]}}
    made = converted({"policies": [policy], "queues": [{"name": "q"}]})

    assert re.search(r"queue q: k{80} of policy n{80} \['v{78}: left out", reports(made))


def test_differences_beyond_a_bound_are_counted(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(conversion_module, "DIFFERENCES_MAX", 2)
    file = tmp_path / "definitions.json"
    file.write_text(
        json.dumps({"queues": [{"name": name, "arguments": {"x-odd": 1}} for name in "abcde"]})
    )

    with penstock.Realm() as realm:
        made = commands_of(realm)("topology", "from-rabbitmq", str(file))

    assert made.stderr.count("x-odd 1: left out") == 2
    assert "3 more warnings and notes are not listed\n" in made.stderr
    assert "5 queues, 0 durables, 0 joins, 0 grants; 5 warnings" in made.stderr


def test_without_access_nothing_is_said_about_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conversion_module, "ENTRIES_MAX", 2)
    document = {
        "queues": [{"name": "a"}, {"name": "b"}],
        "users": [{"name": "u", "tags": "administrator"}],
        "permissions": [{"user": "u", "read": "[ab]"}],
        "topic_permissions": [{"user": "u", "exchange": "e"}],
    }

    made = convert_definitions(json.dumps(document).encode(), "f.json", with_access=False)

    assert made.differences == []
    assert (made.topology().users, made.topology().grants) == ((), ())


def test_joins_that_a_realm_would_refuse_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A realm bounds the work of all selectors on one channel for each event."""
    monkeypatch.setattr(conversion_module, "SELECTORS_WORK_MAX", 10)
    keys = [*"abcdefghijkl", "a"]
    document = {
        "queues": [{"name": f"q{number:02}"} for number in range(len(keys))],
        "exchanges": [{"name": "e", "type": "topic"}],
        "bindings": [
            {"source": "e", "destination": f"q{number:02}", "routing_key": key}
            for number, key in enumerate(keys)
        ],
    }

    made = converted(document)

    selectors = [join.selector for join in made.topology().joins]
    assert selectors == [f"tag = '{key}'" for key in [*"abcdefghij", "a"]], "equal ones count once"
    assert reports(made).count("would need too many comparisons for each event") == 2


def test_a_policy_may_not_have_endless_keys() -> None:
    policy = {
        "name": "p",
        "pattern": ".*",
        "definition": {f"k{number}": 1 for number in range(101)},
    }

    with pytest.raises(InvalidArgument, match=r"policies\[0\]: definition"):
        converted({"policies": [policy]})


def test_a_long_chain_of_dead_letters_is_cut() -> None:
    def dead(target: int) -> dict[str, Any]:
        return {"x-dead-letter-exchange": "", "x-dead-letter-routing-key": f"q{target:04}"}

    queues = [{"name": f"q{number:04}", "arguments": dead(number + 1)} for number in range(300)]
    made = converted({"queues": [*reversed(queues), {"name": "q0300"}]})

    leading = [store for store in made.topology().stores if store.definition.dead_event_store]
    assert len(leading) == 99
    assert "queue q0000: dead-letter-exchange: left out: dead events would pass over 100" in (
        reports(made)
    )


def test_names_cannot_forge_a_line() -> None:
    name = "a\n[[queue]]\nname = 'forged'"
    made = converted({"queues": [{"name": name}], "users": [{"name": name}]})

    text = to_toml(made.topology(), remark=remark)
    assert parse(text).stores == ()
    assert all("\n" not in str(difference) for difference in made.differences)
    assert "left out" in reports(made)


# --- any definitions ------------------------------------------------------------------------

NAMES = st.sampled_from(["a", "b", "a//b", "eu/x", "*", "", "größe", "x" * 255, "a\tb", "c "])
KEYS = st.sampled_from(["", "k", "a.b", "#", "*.a", "a.#.b", "*.a.#", "it's", "a%_"])
NUMBERS = st.sampled_from([-1, 0, 1, 7, 1 << 31, 1 << 62, 1 << 70, 2.5, "1", None, True])
ARGUMENTS = st.dictionaries(
    st.sampled_from(
        ["message-ttl", "max-length", "max-age", "delivery-limit", "expires", "overflow", "odd"]
    ).map("x-{}".format),
    st.one_of(NUMBERS, st.sampled_from(["7D", "reject-publish", [1], {"a": 1}])),
    max_size=3,
)
DEAD_LETTERS: st.SearchStrategy[dict[str, Any]] = st.one_of(
    st.just({}),
    st.fixed_dictionaries(
        {"x-dead-letter-exchange": st.one_of(NAMES, st.just(""))},
        optional={"x-dead-letter-routing-key": st.one_of(KEYS, NAMES)},
    ),
)
QUEUES = st.fixed_dictionaries(
    {"name": NAMES, "arguments": st.builds(lambda a, b: a | b, ARGUMENTS, DEAD_LETTERS)},
    optional={
        "durable": st.booleans(),
        "auto_delete": st.booleans(),
        "type": st.sampled_from(["classic", "quorum", "stream", "new"]),
    },
)
EXCHANGES = st.fixed_dictionaries(
    {"name": NAMES, "type": st.sampled_from(["direct", "fanout", "topic", "headers", "x-new"])},
    optional={"durable": st.booleans(), "arguments": ARGUMENTS, "internal": st.booleans()},
)
HEADERS = st.dictionaries(
    st.sampled_from(["x-match", "kind", "a b", "tag"]),
    st.sampled_from(["any", "all", 1, None, True, [1]]),
    max_size=2,
)
BINDINGS = st.fixed_dictionaries(
    {"source": st.one_of(NAMES, st.just("amq.topic")), "destination": NAMES, "routing_key": KEYS},
    optional={"destination_type": st.sampled_from(["queue", "exchange"]), "arguments": HEADERS},
)
PATTERNS = st.sampled_from([".*", "^a", "", "(", "(?=a)", "^$", "[ab]", "amq.default|b"])
USERS = st.fixed_dictionaries(
    {"name": NAMES}, optional={"tags": st.sampled_from(["administrator", ["monitoring", "x"]])}
)
PERMISSIONS = st.fixed_dictionaries(
    {"user": NAMES}, optional={"configure": PATTERNS, "write": PATTERNS, "read": PATTERNS}
)
POLICIES = st.fixed_dictionaries(
    {"name": NAMES, "pattern": PATTERNS},
    optional={
        "definition": ARGUMENTS.map(lambda some: {key[2:]: some[key] for key in some}),
        "priority": st.integers(-3, 3),
        "apply-to": st.sampled_from(["all", "queues", "exchanges", "streams"]),
    },
)
DOCUMENTS = st.fixed_dictionaries(
    {},
    optional={
        "queues": st.lists(QUEUES, max_size=5),
        "exchanges": st.lists(EXCHANGES, max_size=4),
        "bindings": st.lists(BINDINGS, max_size=6),
        "users": st.lists(USERS, max_size=3),
        "permissions": st.lists(PERMISSIONS, max_size=3),
        "policies": st.lists(POLICIES, max_size=2),
        "others": st.just([]),
    },
)


@pytest.mark.slow
@settings(max_examples=examples(40), deadline=None)
@given(DOCUMENTS)
def test_whatever_is_drawn_applies_and_what_is_left_out_is_named(
    document: dict[str, Any],
) -> None:
    made = converted(document)

    with penstock.Realm(access__mode="mandatory", **QUICK) as realm, realm.connect() as session:
        applied(session, made)
        stores = {*session.queues.list(), *session.channels.list()}
        assert stores == {store.name for store in made.topology().stores}
    said = reports(made)
    for section, word in (("queues", "(queue|stream)"), ("exchanges", "exchange")):
        for entry in document.get(section, ()):
            remarks = [remark(store.place) for store in made.topology().stores]
            is_there = any(
                re.fullmatch(f"{word} {re.escape(entry['name'])}", one) for one in remarks
            )
            assert is_there or re.search(f"{word} .*left out", said), entry
    assert ("others: left out" in said) == ("others" in document)
    again = converted(document)
    assert to_toml(again.topology()) == to_toml(made.topology())
    assert again.differences == made.differences


# --- the command ----------------------------------------------------------------------------


def test_the_command_writes_a_file_that_apply_takes(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    with penstock.Realm() as realm, realm.connect() as session:
        run = commands_of(realm)

        made = run("topology", "from-rabbitmq", str(DEFINITIONS), str(file), "--no-access")
        assert made.exit_code == 0
        assert f"{file} written: 6 channels, 5 queues, 0 durables, 7 joins, 0 grants; 1" in (
            made.stderr
        )
        assert "warning: queue billing.urgent: x-max-priority 10: " in made.stderr
        assert "# exchange orders\n[[channel]]\nname = " in file.read_text()
        assert run("apply", str(file)).exit_code == 0
        assert run("apply", str(file), "--check", "--prune").exit_code == 0
        assert plan(parse(file.read_text()), look(session)) == Plan()

        again = run("topology", "from-rabbitmq", str(DEFINITIONS), "--no-access")
        assert again.stdout == file.read_text()


def test_strict_says_by_its_status_that_something_differs(tmp_path: Path) -> None:
    with penstock.Realm() as realm:
        run = commands_of(realm)
        assert run("topology", "from-rabbitmq", str(DEFINITIONS), "--strict").exit_code == 3
        same = tmp_path / "same.json"
        same.write_text('{"queues": [{"name": "q", "arguments": {"x-queue-mode": "lazy"}}]}')
        assert run("topology", "from-rabbitmq", str(same), "--strict").exit_code == 0
        replaced = run("topology", "from-rabbitmq", str(same), str(same))
        assert (replaced.exit_code, same.read_text()[:9]) == (2, '{"queues"')


def test_an_event_keeps_its_tag_on_its_way(guarded: Session) -> None:
    """The routing key of a message that a client of AMQP sends is its subject."""
    document = {
        "exchanges": [{"name": "e"}],
        "queues": [{"name": "q"}],
        "bindings": [{"source": "e", "destination": "q", "routing_key": "k"}],
    }
    applied(guarded, converted(document, key_name="JMSType"))

    guarded.channels.get("e").publish_many([Event(b"1", headers={"type": "k"}), Event(b"2")])

    assert [event.data for event in guarded.queues.get("q").peek(2)] == [b"1"]

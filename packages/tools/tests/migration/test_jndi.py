"""JNDI properties: Java reads back every name, and every name can be bound."""

from __future__ import annotations

import itertools
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.client.connection.urls import parse_url
from penstock_core.vocabulary.errors import InvalidArgument, InvalidName
from penstock_core.vocabulary.names import destination_name
from penstock_tools.migration.jndi import (
    FACTORIES,
    Lookup,
    amqp_url_of,
    checked_amqp_url,
    jndi_properties,
    lookups,
)

URL = "amqp://localhost:5672"
SHOP = """\
# Realm shop
java.naming.factory.initial = org.apache.qpid.jms.jndi.JmsInitialContextFactory

connectionfactory.ConnectionFactory = amqp://localhost:5672
connectionfactory.QueueConnectionFactory = amqp://localhost:5672
connectionfactory.TopicConnectionFactory = amqp://localhost:5672

queue.shop/orders = shop/orders
queue.work = work

topic.shop/prices = shop/prices
# topic work/done is looked up as work_done: the name work belongs to queue work
topic.work_done = work/done
"""


def written(channels: list[str], queues: list[str]) -> str:
    """The properties of a realm with these channels and queues."""
    destinations = lookups(channels, queues, FACTORIES)
    return jndi_properties(destinations, url=URL, factories=FACTORIES, heading="Realm shop")


def read_by_java(text: str) -> dict[str, str]:
    """The properties in a text, as the documentation of ``java.util.Properties.load`` has it."""
    read = {}
    for line in text.encode("ascii").decode("latin-1").split("\n"):
        if not line.strip(" \t\f") or line.lstrip(" \t\f")[0] in "#!":
            continue
        entry = re.match(r"((?:\\.|[^\\:= \t\f])*)[ \t\f]*[:=]?[ \t\f]*(.*)", line.lstrip(" \t\f"))
        assert entry is not None
        key, value = (unescaped_by_java(part) for part in entry.groups())
        assert key not in read, "a later line would replace an earlier one"
        read[key] = value
    return read


def unescaped_by_java(text: str) -> str:
    """A key or value without its escapes, and its surrogate pairs as characters."""
    signs = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}

    def sign(escape: re.Match[str]) -> str:
        return chr(int(escape[1], 16)) if escape[1] else signs.get(escape[2], escape[2])

    units = re.sub(r"\\(?:u([0-9a-f]{4})|(.))", sign, text)
    return units.encode("utf-16", "surrogatepass").decode("utf-16")


def expanded_by_qpid(value: str) -> str:
    """A value in which Qpid JMS has replaced ``$$``; fails if it would replace a variable."""

    def replaced(match: re.Match[str]) -> str:
        assert match[0] == "$$", f"{value} contains a variable"
        return "$"

    return re.sub(r"\$\{[^}]*\}|\$\$", replaced, value)


def test_a_realm_is_written_sorted_and_in_the_same_way_each_time() -> None:
    text = written(["work/done", "shop/prices"], ["work", "shop/orders"])

    assert text == SHOP
    assert written(["shop/prices", "work/done"], ["shop/orders", "work"]) == text


@pytest.mark.parametrize(
    ("name", "line"),
    [
        ("two words", r"topic.two\ words = two words"),
        ("a=b", r"topic.a\=b = a=b"),
        ("eu:bills", r"topic.eu\:bills = eu:bills"),
        ("#1!", r"topic.\#1\! = #1!"),
        ("Grüße", r"topic.Gr\u00fc\u00dfe = Gr\u00fc\u00dfe"),
        ("🍋", r"topic.\ud83c\udf4b = \ud83c\udf4b"),
        ("${user.home}", r"topic.${user.home} = $${user.home}"),
        ("$$", r"topic.$$ = $$$$"),
        ("'quoted\"", "topic.'quoted\" = 'quoted\""),
    ],
)
def test_a_name_is_escaped_for_java_and_for_qpid_jms(name: str, line: str) -> None:
    assert line in written([name], []).splitlines()


@pytest.mark.parametrize("name", ["a\\b", "a\nqueue.b = c", " a", "a\r", "\f", "a\x00", "\u2028"])
def test_no_text_reaches_another_line_or_loses_a_character(name: str) -> None:
    """Names of a realm have none of these; lookup names of factories come from the command line."""
    lookup = Lookup("topic", name, name)
    text = jndi_properties([lookup], url=URL, factories=[name], heading="Realm shop")

    assert read_by_java(text) == {
        "java.naming.factory.initial": "org.apache.qpid.jms.jndi.JmsInitialContextFactory",
        f"connectionfactory.{name}": URL,
        f"topic.{name}": name,
    }


def is_name(text: str) -> bool:
    try:
        return destination_name(text) == text
    except InvalidName:
        return False


NAMES = st.one_of(
    st.text("ab/_:2", min_size=1, max_size=6),
    st.text("a/:= #!${}'\"_üλ🍋", min_size=1, max_size=10),
    st.tuples(
        st.sampled_from(["java:", "rmi:", *FACTORIES, "dynamicQueues", "dynamicTopics"]),
        st.sampled_from(["", "/", "_2", "a/b"]),
    ).map("".join),
    st.text(min_size=1, max_size=8),
).filter(is_name)


@given(st.sets(NAMES, max_size=20).flatmap(lambda names: st.tuples(*map(with_kind, sorted(names)))))
def test_java_finds_every_destination_of_any_realm(realm: tuple[tuple[str, bool], ...]) -> None:
    channels = [name for name, is_channel in realm if is_channel]
    queues = [name for name, is_channel in realm if not is_channel]

    properties = read_by_java(written(channels, queues))

    bound = {
        key: value
        for key, value in properties.items()
        if key.startswith(("queue.", "topic.", "connectionfactory."))
    }
    for kind, names in (("queue.", queues), ("topic.", channels)):
        values = [expanded_by_qpid(value) for key, value in bound.items() if key.startswith(kind)]
        assert sorted(values) == sorted(names)
    lookup_names = [key.partition(".")[2] for key in bound] + ["dynamicQueues", "dynamicTopics"]
    assert len(set(lookup_names)) == len(lookup_names)
    for name in lookup_names:
        assert all(name.split("/"))
        folders = {"/".join(name.split("/")[:parts]) for parts in range(1, name.count("/") + 1)}
        assert folders.isdisjoint(lookup_names), "a name is an object or the beginning of others"
        assert not re.match("(?i:java|rmi|ldaps?|dns):", name)


def with_kind(name: str) -> st.SearchStrategy[tuple[str, bool]]:
    return st.tuples(st.just(name), st.booleans())


def test_a_destination_whose_name_cannot_be_bound_gets_another_one_with_the_reason() -> None:
    channels = ["a", "a/b", "a_b", "shop", "java:comp", "dynamicQueues/x"]

    results = lookups(channels, ["a:b", "a/b/c"], ["shop/Factory"])

    assert [(lookup.kind, lookup.destination, lookup.name) for lookup in results] == [
        ("queue", "a/b/c", "a_b_c"),
        ("queue", "a:b", "a:b"),
        ("topic", "a", "a"),
        ("topic", "a/b", "a_b_2"),
        ("topic", "a_b", "a_b"),
        ("topic", "dynamicQueues/x", "dynamicQueues_x"),
        ("topic", "java:comp", "java_comp"),
        ("topic", "shop", "shop_2"),
    ]
    assert [lookup.remark for lookup in results if lookup.remark] == [
        "queue a/b/c is looked up as a_b_c: the name a belongs to topic a",
        "topic a/b is looked up as a_b_2: the name a belongs to topic a",
        "topic dynamicQueues/x is looked up as dynamicQueues_x: the name dynamicQueues belongs to "
        "Qpid JMS itself",
        "topic java:comp is looked up as java_comp: Java resolves names that begin with java: by "
        "itself",
        "topic shop is looked up as shop_2: the name of connection factory shop/Factory begins "
        "with shop/",
    ]


def test_thousands_of_names_with_one_substitute_are_told_apart() -> None:
    """Each of them tries few names; quadratic work would take minutes."""
    names = ["a", *(f"a/{'x'.join(signs)}x" for signs in itertools.product("_/", repeat=12))]

    results = lookups(names, [], FACTORIES)

    assert len({lookup.name for lookup in results}) == len(names) == 4_097


@pytest.mark.parametrize(
    "url",
    [
        "amqp://localhost:5672",
        "amqps://shop.example:5672?jms.username=till%40shop&transport.verifyHost=true",
        "amqpws://localhost:9080/ws",
        "failover:(amqp://a:5672,amqp://b:5672)?failover.reconnectDelay=50",
        "amqp://localhost:5672?jms.username=till&jms.password=${SHOP_PASSWORD}",
        "failover:(amqps://a:5672?transport.keyStorePassword=${KEY})?jms.clientID=till",
    ],
)
def test_a_url_of_qpid_jms_is_taken(url: str) -> None:
    assert checked_amqp_url(url) == url
    text = jndi_properties([], url=url, factories=["Shop"], heading="")
    assert read_by_java(text)["connectionfactory.Shop"] == url


@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("", "must look like amqp://host:5672"),
        ("nsp://localhost:9000", "must look like amqp://host:5672"),
        ("penstock://localhost:9000", "must look like amqp://host:5672"),
        ("amqp://localhost:5672?jms.clientID=a b", "must look like amqp://host:5672"),
        ("amqp://localhost:5672\nqueue.a = b", "must look like amqp://host:5672"),
        ("amqp://bücher:5672", "only characters of ASCII"),
        ("amqp://till:tillsecret@localhost:5672", "contains an '@'"),
        ("amqp://localhost?jms.password=tillsecret", "contains a password"),
        ("amqp://localhost?jms.pass%77ord=tillsecret", "contains a password"),
        ("amqp://localhost?jms.password=${X:-tillsecret}", "contains a password"),
        ("amqp://localhost?jms.password=${X}tillsecret", "contains a password"),
        ("amqps://localhost?transport.trustStorePassword=tillsecret", "contains a password"),
    ],
)
def test_another_url_or_a_password_is_refused_and_not_repeated(url: str, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        checked_amqp_url(url)

    assert reason in str(refused.value)
    assert "tillsecret" not in str(refused.value)


@pytest.mark.parametrize(
    ("realm", "url"),
    [
        ("penstock://localhost:9000", "amqp://localhost:5672"),
        ("penstocks://ann:secret@shop.example:9000?ca=ca.pem", "amqps://shop.example:5672"),
        ("penstock://[::1]:9000", "amqp://[::1]:5672"),
        ("penstock://a:9000,b:9000", "failover:(amqp://a:5672,amqp://b:5672)"),
        ("penstock://a:9000,a:9001", "amqp://a:5672"),
    ],
)
def test_the_url_follows_from_that_of_the_realm_without_its_password(realm: str, url: str) -> None:
    assert amqp_url_of(parse_url(realm)) == url


@pytest.mark.parametrize(
    ("factories", "reason"),
    [
        ([""], "at least one character before and after each '/'"),
        (["/Shop"], "at least one character before and after each '/'"),
        (["java:comp/env/Shop"], "Java resolves names that begin with java: by itself"),
        (["dynamicTopics/Shop"], "the name dynamicTopics belongs to Qpid JMS itself"),
        (["jms", "jms/Shop"], "the name jms belongs to connection factory jms"),
        (["jms/Shop", "jms"], "the name of connection factory jms/Shop begins with jms/"),
    ],
)
def test_factories_whose_names_cannot_be_bound_are_refused(
    factories: list[str], reason: str
) -> None:
    with pytest.raises(InvalidArgument, match=re.escape(reason)):
        lookups([], [], factories)

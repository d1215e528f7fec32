"""Topologies are read from TOML; what is wrong is told with its line."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.topology import load, parse, to_toml

SHOP = """
# The shop
[[channel]]
name = "dead"

[[channel]]
name = "eu//orders"
type = "persistent"
ttl = "90m"
dead_event_store = "/dead"
keys = { sku = 2 }
storage = { sync = "none", sync_batch_time = 5 }

  [[channel.durable]]
  name = "billing"
  type = "serial"
  order_by = "customer"
  start = 2026-05-04T12:00:00

[[queue]]
name = "work"

[[join]]
source = "/eu/orders"
destination = "work"
selector = "price > 5"

[[user]]
name = "alice"

[[group]]
name = "sales"
members = ["bob", "alice"]

[[grant]]
channel = "eu/*"
subject = "group:sales"
rights = ["publish", "subscribe"]

[[grant]]
subject = "alice@*"
rights = ["access"]
"""


def test_times_of_a_durable_and_a_queue_are_texts() -> None:
    shop = parse(
        """
        [[channel]]
        name = "orders"
          [[channel.durable]]
          name = "calm"
          ack_timeout = "30s"
          backoff = { first = "1s", factor = 3, most = "1m", jitter = 0.5 }
        [[queue]]
        name = "work"
        backoff = { first = 250 }
        """
    )

    calm = shop.stores[0].durables[0].attributes
    assert (calm.ack_timeout, calm.backoff) == (30_000, Backoff(1_000, 3.0, 60_000, jitter=0.5))
    assert shop.stores[1].definition.backoff == Backoff(250)
    assert parse(to_toml(shop)).stores[0].durables[0].attributes == calm
    assert 'backoff = { first = "250ms" }' in to_toml(shop)


def test_a_file_says_what_a_realm_consists_of() -> None:
    shop = parse(SHOP)

    assert [(store.kind, store.name) for store in shop.stores] == [
        ("channel", "dead"),
        ("channel", "eu/orders"),
        ("queue", "work"),
    ]
    assert shop.stores[1].definition == Definition(
        type="persistent",
        ttl=5_400_000,
        dead_event_store="dead",
        keys={"sku": 2},
        storage=Storage(sync="none", sync_batch_time=5),
    )
    (billing,) = shop.stores[1].durables
    assert (billing.type, billing.attributes.order_by) == ("serial", "customer")
    assert str(billing.start) == "2026-05-04 12:00:00+00:00"
    assert [(join.source, join.destination) for join in shop.joins] == [("eu/orders", "work")]
    assert shop.groups[0].members == ("alice", "bob")
    assert [(grant.kind, grant.name, grant.rights) for grant in shop.grants] == [
        ("channel", "eu/*", ("subscribe", "publish")),
        ("realm", "", ("access",)),
    ]


def test_an_empty_file_is_a_realm_with_nothing_in_it() -> None:
    assert parse("").stores == ()
    assert not parse("").lists_access


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[[channel]\n", "shop.toml: this is not TOML: .*at line 1"),
        (
            "\n[[chanel]]\n",
            "shop.toml:2: 'chanel' is not a section of a topology; did you mean channel?",
        ),
        ("listen.port = 9\n", "shop.toml:1: listen is a setting of penstock serve"),
        (
            "[channel]\nname = 'a'\n",
            r"shop.toml:1: channel must be a list of tables, .*\[\[channel\]\]",
        ),
        ("[[channel]]\nttl = 5\n", "shop.toml:1: channel: name is missing; it must be a text"),
        (
            "[[queue]]\nname = 5\n",
            "shop.toml:2: queue: name must be a text that is not empty, not 5",
        ),
        ("[[channel]]\nname = 'a*/*'\n", "shop.toml:2: channel a.*wildcard"),
        (
            "[[channel]]\nname = 'a'\n\n# soon\nttl = 'soon'\n",
            "shop.toml:5: channel a: ttl is 'soon'; give milliseconds, or a text such as 500ms",
        ),
        (
            "[[channel]]\nname = 'a'\n[[channel]]\nname = 'b'\ncapacity = 'x'\n",
            "shop.toml:5: channel b: capacity must be an integer, not 'x'",
        ),
        (
            "[[channel]]\nname = 'a'\ncapicity = 5\n",
            "shop.toml:3: channel a: capicity is not a key here; did you mean capacity?",
        ),
        (
            "[[channel]]\nname = 'a'\n[channel.storage]\nsnc = 'none'\n",
            "shop.toml:4: channel a: storage.snc is not a key here; did you mean sync?",
        ),
        ("[[channel]]\nname = 'a'\nstorage = 5\n", "shop.toml:3: channel a: storage must be a tab"),
        (
            "[[channel]]\nname = 'a'\nkeys = {\n}\n",
            "this is not TOML",
        ),
        (
            "[[channel]]\nname = 'a'\narchive = '''\ncapacity = 5\n'''\ncapacity = true\n",
            "shop.toml:6: channel a: capacity must be an integer, not true",
        ),
        ("[[queue]]\nname = 'a'\n[[queue.durable]]\nname = 'b'\n", "shop.toml:3: .*durable is not"),
        (
            "[[channel]]\nname = 'a'\n[[channel.durable]]\nname = 'b'\nselector = 'a >'\n",
            "shop.toml:5: durable b: selector.*expected a value after '>'",
        ),
        (
            "[[channel]]\nname = 'a'\n[[channel.durable]]\nname = 'b'\nstart = 'soon'\n",
            "shop.toml:5: durable b: start is 'soon'; give \"earliest\"",
        ),
        (
            "[[channel]]\nname = 'a'\n[[channel.durable]]\nname = 'b'\nbackoff = 5\n",
            'shop.toml:5: durable b: backoff must be a table such as { first = "1s"',
        ),
        (
            "[[queue]]\nname = 'a'\nbackoff = { first = 'soon' }\n",
            "shop.toml:3: queue a: backoff.first",
        ),
        (
            "[[channel]]\nname = 'a'\n[[channel.durable]]\nname = 'b'\nmax_deliveries = -1\n",
            "shop.toml:5: durable b: max_deliveries must be at least 0, not -1",
        ),
        ("[[join]]\nsource = 'a'\n", "shop.toml:1: join a: .*'destination', which is missing"),
        ("[[channel]]\nname='a'\n[[queue]]\nname='/a'\n", "shop.toml:3: store a is defined twice"),
        ("[[user]]\nname='a'\npassword='x'\n", "shop.toml:3: user a: password: .* has no secrets"),
        ("[[group]]\nname='a'\nmembers='b'\n", "shop.toml:3: group a: members must be a list of"),
        (
            "[[grant]]\nsubject='a'\nrights=['full']\n",
            "shop.toml:2: grant a: subject: 'a' is not a subject; give user@host",
        ),
        (
            "[[grant]]\nqueue='q'\nsubject='a@*'\nrights=[\n'pop',\n'publish']\n",
            "shop.toml:4: grant a@.*: rights: 'publish' is not a right on a queue; the rights are",
        ),
        (
            "[[grant]]\nqueue='q'\nchannel='c'\nsubject='a@*'\nrights=['pop']\n",
            "shop.toml:2: grant .*a grant names one channel, one queue or one topic",
        ),
        ("[[pipeline]]\nfile='no.toml'\n", "shop.toml:2: pipeline: file: .* does not exist"),
        (
            "[[channel]]\nname='a'\ndescriptors='no.pb'\n",
            "shop.toml:3: channel a: descriptors: no.pb cannot be read: No such file",
        ),
        (
            "[[channel]]\nname='a'\ndescriptors='base64:?'\n",
            "shop.toml:3: channel a: descriptors: the text after base64: is not valid",
        ),
    ],
)
def test_what_is_wrong_is_told_with_file_line_and_key(text: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        parse(text, file="shop.toml")


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match=r"shop.toml: No such file"):
        load(tmp_path / "shop.toml")

    (tmp_path / "shop.toml").write_bytes(b"\xff\n")
    with pytest.raises(InvalidArgument, match=r"shop.toml: this is not UTF-8"):
        load(tmp_path / "shop.toml")


def test_descriptors_stand_in_a_file_of_their_own_or_in_this_one(tmp_path: Path) -> None:
    from google.protobuf.descriptor_pb2 import FileDescriptorProto, FileDescriptorSet

    file = FileDescriptorProto(name="shop.proto", package="shop", syntax="proto3")
    file.message_type.add(name="Order")
    descriptors = FileDescriptorSet(file=[file]).SerializeToString()
    (tmp_path / "shop.pb").write_bytes(descriptors)
    text = "[[channel]]\nname = 'a'\ndescriptors = "
    (tmp_path / "shop.toml").write_text(f"{text}'shop.pb'\n")

    beside = load(tmp_path / "shop.toml")
    inside = parse(f"{text}'base64:{base64.b64encode(descriptors).decode()}'\n")

    assert beside.stores[0].definition.descriptors == descriptors
    assert inside.stores == beside.stores


@pytest.mark.spec("D22")
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[durable]]\nname = "d"', "pattern"),
        ('[[durable]]\nname = "d"\npattern = "orders"', "names channels and is not a pattern"),
        ('[[durable]]\nname = "d"\npattern = "a/../*"', "pattern:"),
        ('[[durable]]\nname = "d"\npattern = "a*"\n\n' * 2, "is defined twice"),
        (
            '[[durable]]\nname = "d"\npattern = "a*"\n\n'
            '[[channel]]\nname = "ab"\n[[channel.durable]]\nname = "d"',
            "the channel has it from pattern a*, too; remove one of them",
        ),
    ],
)
def test_a_durable_over_a_pattern_that_cannot_be_is_refused_with_its_place(
    text: str, said: str
) -> None:
    with pytest.raises(InvalidArgument, match=r"shop.toml:\d+: ") as refused:
        parse(text, file="shop.toml")

    assert said in str(refused.value)

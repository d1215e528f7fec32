"""Wire version 1, byte for byte: a client of this version is understood for as long as it lives.

A change here is a new wire version: another eighth byte of the preface, and both are served.
"""

from __future__ import annotations

import msgspec
import pytest

from penstock_core.api.channels import ChannelOpened, CreateChannel
from penstock_core.api.durables import CreateDurable, DurableInfo, UnbindDurable
from penstock_core.api.patterns import WatchChannels
from penstock_core.api.publishing import CommitStagedParts, CommitStages, PublishEvents
from penstock_core.api.realm import Ping
from penstock_core.api.subscriptions import Attach, Extend, Settle, Subscribe
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest, FromId, FromTime
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.frames import PREFACE, frame

BACKOFF = Backoff(1_000, 3.0, 60_000, 0.25, 7)

MESSAGES: list[tuple[wire.Message, str]] = [
    (
        wire.Hello("client", "session", "user", "token"),
        "9701a6636c69656e74a773657373696f6ea475736572a5746f6b656ea0c400",
    ),
    (
        wire.Proof(b"p"),
        "9203c40170",
    ),
    (
        wire.Challenge(b"c"),
        "926cc40163",
    ),
    (
        wire.Schema(7),
        "920207",
    ),
    (
        wire.Asked(
            1,
            CreateChannel("a/b", Definition(type="reliable", ttl=5, storage=Storage(sync="none"))),
        ),
        "940a01a3612f62de0003a474797065a872656c6961626c65a374746c05a773746f7261676581a473"
        "796e63a46e6f6e65",
    ),
    (
        wire.Asked(2, PublishEvents(ChannelId(3), "producer", 4, 7, (16, 8))),
        "97140203a870726f64756365720407921008",
    ),
    (
        wire.Asked(3, CommitStages(ChannelId(3), "producer", 5, ("one", "two"))),
        "96160303a870726f64756365720592a36f6e65a374776f",
    ),
    (
        wire.Asked(3, CommitStagedParts("producer", 5, ((3, ("one",)), (4, ("two",))))),
        "951d03a870726f64756365720592920391a36f6e65920491a374776f",
    ),
    (
        wire.Asked(4, CreateDurable(ChannelId(3), "d", "shared", FromTime(9), "n > 5", None)),
        "9e1e0403a164a673686172656482a474797065a846726f6d54696d65a561745f757309a56e203e2035c0"
        "00c2c2a0c000",
    ),
    (
        wire.Asked(5, UnbindDurable(ChannelId(3), "d")),
        "94230503a164",
    ),
    (
        wire.Asked(5, Subscribe(ChannelId(3), 1, FromId(6), 4_096, "", True, -1)),
        "9d2805030182a474797065a646726f6d4964a86576656e745f696406cd1000a0c3ffc2c20000",
    ),
    (
        wire.Asked(6, Subscribe(ChannelId(3), 1, FromEarliest(), 0)),
        "9d2806030181a474797065ac46726f6d4561726c6965737400a0c2c0c2c20000",
    ),
    (
        wire.Asked(7, Attach(ChannelId(3), 2, "d", 10, False)),
        "9c29070302a1640ac2a0c2c20000",
    ),
    (
        wire.Asked(8, Settle(2, (Span(0, 3), Span(5, 6)), True, False)),
        "972e080292920003920506c3c2c0",
    ),
    (
        wire.Asked(8, Settle(2, (Span(0, 3),), True, False, 5_000)),
        "972e080291920003c3c2cd1388",
    ),
    (
        wire.Asked(
            9,
            CreateDurable(
                ChannelId(3), "d", "serial", FromEarliest(), backoff=BACKOFF, ack_timeout=30_000
            ),
        ),
        "9e1e0903a164a673657269616c81a474797065ac46726f6d4561726c69657374a0c000c2c2a085a56669"
        "727374cd03e8a6666163746f72cb4008000000000000a46d6f7374cdea60a66a6974746572cb3fd00000"
        "00000000a47365656407cd7530",
    ),
    (
        wire.Asked(9, Extend(2, (Span(0, 3),), 5_000)),
        "9534090291920003cd1388",
    ),
    (
        wire.Credit(1, 100),
        "952c01640000",
    ),
    (
        wire.RecallSeen(2),
        "922f02",
    ),
    (
        wire.Asked(0, Ping()),
        "923c00",
    ),
    (
        wire.Bye(),
        "913d",
    ),
    (
        wire.Welcome("realm", "name", "0.1.0", 20 << 20, 64 << 20),
        "9664a57265616c6da46e616d65a5302e312e30ce01400000ce04000000",
    ),
    (
        wire.Done(2, [0, 10]),
        "93650292000a",
    ),
    (
        wire.Failed(3, "capacity-reached", "full"),
        "946603b063617061636974792d72656163686564a466756c6c",
    ),
    (
        wire.Delivery(1, 7, 2, 40, 1_700_000_000_000_000, ((1, (Span(40, 41),)),)),
        "986701070228cf00060a24181e40009192019192282990",
    ),
    (
        wire.Closed(1, "name-does-not-exist", "gone"),
        "946901b36e616d652d646f65732d6e6f742d6578697374a4676f6e65",
    ),
    (
        wire.Recalled(2, (Span(3, 5),)),
        "936b0291920305",
    ),
    (
        wire.Goodbye("realm-stopping", "bye"),
        "936aae7265616c6d2d73746f7070696e67a3627965",
    ),
    (
        wire.ClusterWelcome(
            "realm", "name", "0.1.0", 20 << 20, 64 << 20, 2.0, ("10.0.0.1:9000",), "10.0.0.1:9000"
        ),
        "9964a57265616c6da46e616d65a5302e312e30ce01400000ce04000000cb400000000000000091ad"
        "31302e302e302e313a39303030ad31302e302e302e313a39303030",
    ),
    (
        wire.Follow(),
        "9104",
    ),
    (
        wire.Asked(7, WatchChannels("orders/*, eu/**", 2, "billing")),
        "953a07af6f72646572732f2a2c2065752f2a2a02a762696c6c696e67",
    ),
    (
        wire.ChannelsFound(2, (ChannelOpened(ChannelId(5), "orders/eu", Definition()),)),
        "9374029184a76368616e6e656c05a46e616d65a96f72646572732f6575aa646566696e6974696f6e"
        "de0000a372756ea0",
    ),
    (
        wire.Owners(3, {0: "10.0.0.1:9000"}, ("10.0.0.1:9000", "10.0.0.2:9000")),
        "946d038100ad31302e302e302e313a3930303092ad31302e302e302e313a39303030ad31302e302e"
        "302e323a39303030",
    ),
    (
        wire.Redirect("elsewhere", "there", "10.0.0.1:9000"),
        "946aa9656c73657768657265a57468657265ad31302e302e302e313a39303030",
    ),
    (
        wire.Parting("realm-stopping", "bye", taken=300),
        "956aae7265616c6d2d73746f7070696e67a3627965a0cd012c",
    ),
]


@pytest.mark.parametrize(("message", "expected"), MESSAGES, ids=lambda value: type(value).__name__)
def test_a_message_of_version_1_has_these_bytes(message: wire.Message, expected: str) -> None:
    assert wire.encode(message).hex() == expected


def test_what_a_node_says_is_read_back_and_without_its_own_is_what_any_realm_says() -> None:
    welcome = wire.ClusterWelcome("realm", "name", "0.1.0", 1, 2, 2.0)
    redirect = wire.Redirect("elsewhere", "there", "10.0.0.1:9000")
    plain = wire.Goodbye("elsewhere", "there")

    assert wire.decode_from_server(memoryview(wire.encode(welcome))) == welcome
    assert wire.decode_from_server(memoryview(wire.encode(redirect))) == redirect
    assert wire.decode_from_server(memoryview(wire.encode(plain))) == plain
    parting = wire.Parting("elsewhere", "there", taken=0)
    assert wire.decode_from_server(memoryview(wire.encode(parting))) == parting
    older = msgspec.msgpack.Decoder(wire.Welcome | wire.Goodbye)
    assert older.decode(wire.encode(redirect)) == plain
    assert older.decode(wire.encode(parting)) == plain
    assert older.decode(wire.encode(welcome)) == wire.Welcome("realm", "name", "0.1.0", 1, 2)


def test_a_connection_of_version_1_starts_like_this() -> None:
    assert PREFACE == b"PENSTCK\x01"


def test_a_frame_of_version_1_has_these_bytes() -> None:
    assert b"".join(map(bytes, frame(b"head", b"bo", b"dy"))).hex() == (
        "0c0000000400000068656164626f6479"
    )


@pytest.mark.parametrize(
    ("message", "sent"),
    [
        (wire.Hello("client", "session", "user", "token"),
         "9501a6636c69656e74a773657373696f6ea475736572a5746f6b656e"),
        (wire.Asked(7, Attach(ChannelId(3), 2, "d", 10)), "9829070302a1640ac2a0"),
        (wire.Asked(7, Attach(ChannelId(3), 2, "d", 10)), "9929070302a1640ac2a0c2"),
        (wire.Asked(7, Attach(ChannelId(3), 2, "d", 10)), "9a29070302a1640ac2a0c2c2"),
        (wire.Asked(7, Attach(ChannelId(3), 2, "d", 10)), "9b29070302a1640ac2a0c2c200"),
        (wire.Asked(6, Subscribe(ChannelId(3), 1, FromEarliest(), 0)),
         "992806030181a474797065ac46726f6d4561726c6965737400a0c2c0"),
        (wire.Asked(6, Subscribe(ChannelId(3), 1, FromEarliest(), 0)),
         "9a2806030181a474797065ac46726f6d4561726c6965737400a0c2c0c2"),
        (wire.Asked(6, Subscribe(ChannelId(3), 1, FromEarliest(), 0)),
         "9b2806030181a474797065ac46726f6d4561726c6965737400a0c2c0c2c2"),
        (wire.Credit(1, 100), "932c0164"),
        (wire.Credit(1, 100), "942c016400"),
        (wire.Asked(4, CreateDurable(ChannelId(3), "d", "shared", FromTime(9), "n > 5")),
         "9b1e0403a164a673686172656482a474797065a846726f6d54696d65a561745f757309a56e203e2035c000c2c2"),
        (wire.Asked(4, CreateDurable(ChannelId(3), "d", "shared", FromTime(9), "n > 5")),
         "9c1e0403a164a673686172656482a474797065a846726f6d54696d65a561745f757309a56e203e2035c000c2c2a0"),
        (wire.Asked(8, Settle(2, (Span(0, 3), Span(5, 6)), True, False)),
         "962e080292920003920506c3c2"),
        (wire.Asked(1, CreateChannel("a/b", Definition(type="reliable", ttl=5))),
         "940a01a3612f6282a474797065a872656c6961626c65a374746c05"),
    ],
)  # fmt: skip
def test_what_was_sent_before_a_field_was_added_is_understood(
    message: wire.Message, sent: str
) -> None:
    assert wire.decode_from_client(memoryview(bytes.fromhex(sent))) == message


def test_the_description_of_a_durable_from_an_older_realm_says_what_is_in_flight() -> None:
    sent = bytes.fromhex(
        "8ca46e616d65a164a76368616e6e656ca163a474797065a6736861726564aa70657273697374656e74c3"
        "a873656c6563746f72a0a7636c69656e747390a8706f736974696f6e05ab6f75747374616e64696e6704"
        "a770656e64696e6703ab726564656c69766572656401b56f6c646573745f6f75747374616e64696e675f"
        "6d73c0ac6c6173745f726561645f6d73c0"
    )

    info = msgspec.msgpack.decode(sent, type=DurableInfo)

    assert (info.outstanding, info.in_flight, info.ready) == (4, 3, 1)


def test_an_older_client_finds_what_is_in_flight_under_its_old_name() -> None:
    info = DurableInfo(
        name="d",
        channel="c",
        type="shared",
        persistent=True,
        selector="",
        clients=(),
        position=5,
        outstanding=4,
        pending=3,
        in_flight=3,
        redelivered=1,
        oldest_outstanding_ms=None,
        last_read_ms=None,
    )

    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(info))

    assert (sent["pending"], sent["in_flight"]) == (3, 3)

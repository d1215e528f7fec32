"""How connections and links begin: sign-ins that do not wait, the only connection of a container,
what a link is answered with, and what nobody is told (OASIS AMQP 1.0 2.4, 3.5, 5.3; Enforcing
Connection Uniqueness 1.0)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.amqp.tests.dialogue import (
    Dialogue,
    Heard,
    attach_receiver,
    attach_sender,
    begin,
    credit,
    opening,
    sasl_frame,
    talk,
)
from packages.amqp.tests.frames import (
    AMQP,
    ATTACH,
    CLOSE,
    DETACH,
    OPEN,
    SASL,
    TRANSFER,
    Raw,
    frame_of,
    performative,
    terminus,
)
from penstock_amqp.wire import sasl
from penstock_amqp.wire.types import Described, Symbol, UInt, ULong, encode

SOLE = Symbol("sole-connection-for-container")
POLICY = Symbol("sole-connection-enforcement-policy")
DETECTION = Symbol("sole-connection-detection-policy")
REFUSE, CLOSE_EXISTING = UInt(0), UInt(1)
QUICK: dict[str, Any] = {"access__password_rounds": 4_096, "access__failure_delay_s": 0.0}


# --- signing in ---------------------------------------------------------------------------


@pytest.fixture
def guarded() -> Iterator[penstock.Realm]:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as root:
            root.queues.create("hidden")
            root.channels.create("topics/hidden")
            root.access.create_user("ann", "a secret of hers")
            root.access.grant("ann@*", "access")
        yield realm


def sign_in(password: bytes = b"a secret of hers") -> bytes:
    """All of it at once, without a look at what there is."""
    response = b"\0ann\0" + password
    return SASL + sasl_frame(0x41, encode(Symbol("PLAIN")), encode(response))


def test_2_4_2_a_sign_in_need_not_be_waited_for(guarded: penstock.Realm) -> None:
    with Dialogue(guarded.listen_amqp()) as dialogue:
        dialogue.say(sign_in(), opening(), begin(), frame_of(CLOSE))

        assert dialogue.bytes(8) == SASL
        rest = b""
        for code in (b"\x40", b"\x44"):  # the mechanisms, and the outcome
            rest = dialogue.bytes(int.from_bytes(dialogue.bytes(4), "big") - 4)
            assert rest[4:7] == b"\x00\x53" + code
        assert rest.endswith(b"\x50\x00"), "it is good"
        assert dialogue.bytes(8) == AMQP
        dialogue.hear(OPEN)
        assert dialogue.hear(CLOSE).condition == ""


def test_2_4_2_what_is_behind_a_sign_in_that_fails_does_not_count(guarded: penstock.Realm) -> None:
    with Dialogue(guarded.listen_amqp()) as dialogue:
        dialogue.say(sign_in(b"wrong"), opening(), begin(), attach_sender("s", 0))

        assert dialogue.bytes(8) == SASL
        dialogue.bytes(int.from_bytes(dialogue.bytes(4), "big") - 4)
        size = int.from_bytes(dialogue.bytes(4), "big")
        assert dialogue.bytes(size - 4) == sasl.outcome(sasl.AUTH)[4:]
        assert dialogue.is_hung_up()


# --- the only connection of a container ---------------------------------------------------


def sole(policy: Any = None, **more: Any) -> bytes:
    properties = {} if policy is None else {"properties": {POLICY: policy}}
    return opening("only", desired=SOLE, **properties, **more)


def test_the_policy_of_an_only_connection_is_told(realm: penstock.Realm) -> None:
    for policy in (None, REFUSE, CLOSE_EXISTING):
        with Dialogue(realm.listen_amqp()) as dialogue:
            dialogue.say(sole(policy))

            properties = dialogue.hear(OPEN).values[9]
            assert properties[POLICY] == (policy or 0)
            assert properties[DETECTION] == 1
            dialogue.say(frame_of(CLOSE))
            dialogue.hear(CLOSE)


@pytest.mark.parametrize("second", [None, REFUSE, CLOSE_EXISTING])
def test_a_second_one_is_refused_as_the_first_wants_it(realm: penstock.Realm, second: Any) -> None:
    with Dialogue(realm.listen_amqp()) as dialogue, Dialogue(realm.listen_amqp()) as other_dialogue:
        dialogue.say(sole(REFUSE))
        dialogue.hear(OPEN)

        other_dialogue.say(sole(second))

        opened = other_dialogue.hear(OPEN)
        assert opened.values[9][Symbol("amqp:connection-establishment-failed")] is True
        (error,) = other_dialogue.hear(CLOSE).values
        assert error.value[0] == "amqp:invalid-field"
        assert error.value[2] == {Symbol("invalid-field"): Symbol("container-id")}
        dialogue.say(begin(), attach_sender("s", 0))
        dialogue.hear(ATTACH)


def test_the_first_is_closed_where_it_wants_that(
    realm: penstock.Realm, session: penstock.Session
) -> None:
    """What it held is the second's."""
    session.queues.create("work").push(b"x")
    with Dialogue(realm.listen_amqp()) as dialogue, Dialogue(realm.listen_amqp()) as other_dialogue:
        dialogue.say(sole(CLOSE_EXISTING), begin(), attach_receiver("r", 0), credit(0, 1))
        dialogue.hear(TRANSFER)

        other_dialogue.say(sole(REFUSE), begin(), attach_receiver("q", 0), credit(0, 1))

        (error,) = dialogue.hear(CLOSE).values
        assert error.value[0] == "amqp:resource-locked"
        assert error.value[2] == {Symbol("sole-connection-enforcement"): True}
        other_dialogue.hear(TRANSFER)
        with Dialogue(realm.listen_amqp()) as third:
            third.say(sole(CLOSE_EXISTING))
            assert third.hear(CLOSE).condition == "amqp:invalid-field"


def test_a_connection_that_does_not_want_to_be_the_only_one_is_none_of_its_business(
    realm: penstock.Realm,
) -> None:
    with Dialogue(realm.listen_amqp()) as dialogue:
        dialogue.say(sole(CLOSE_EXISTING), begin())
        dialogue.hear(OPEN)

        with talk(realm, "only"):
            dialogue.say(attach_sender("s", 0))
            dialogue.hear(ATTACH)


@pytest.mark.parametrize("policy", [UInt(2), "refuse", True, [0]])
def test_a_policy_that_is_none_is_refused(realm: penstock.Realm, policy: Any) -> None:
    with Dialogue(realm.listen_amqp()) as dialogue:
        dialogue.say(sole(policy))

        assert dialogue.hear(CLOSE).condition == "amqp:invalid-field"


# --- what a link is answered with ---------------------------------------------------------


def test_3_5_3_a_source_without_an_address_is_answered_with_one(realm: penstock.Realm) -> None:
    with talk(realm) as dialogue:
        target = terminus(0x29, "work", capability="queue")
        for number, source in enumerate((Raw(performative(0x28)), None)):
            values = f"s{number}", UInt(number), False, None, None, source, target
            dialogue.say(frame_of(ATTACH, *values, None, None, UInt(0)))

            answered_source = dialogue.hear(ATTACH).values[5]
            assert (answered_source is None) == (source is None)
            assert answered_source is None or answered_source.descriptor == 0x28


@pytest.mark.parametrize("code", [0x28, 0x29])
def test_3_5_3_what_is_made_is_named_in_the_answer(realm: penstock.Realm, code: int) -> None:
    dynamic = terminus(code, None, UInt(0), Symbol("link-detach"), UInt(0), True)
    with talk(realm) as dialogue:
        dialogue.say(attached(code, dynamic))

        error_fields = dialogue.hear(ATTACH).values[5 if code == 0x28 else 6].value
        assert str(error_fields[0]).startswith("temp-queue-")
        assert error_fields[4] is True


@pytest.mark.parametrize("code", [0x28, 0x29])
def test_3_5_3_what_is_made_has_no_address_before(realm: penstock.Realm, code: int) -> None:
    dynamic = terminus(code, "mine", UInt(0), Symbol("link-detach"), UInt(0), True)
    with talk(realm) as dialogue:
        dialogue.say(attached(code, dynamic))

        assert dialogue.hear(DETACH).condition == "amqp:invalid-field"


def dynamic_with(code: int, properties: Any, *, dynamic: bool = True) -> Raw:
    expiry = Symbol("link-detach")
    address = None if dynamic else "work"
    return terminus(code, address, UInt(0), expiry, UInt(0), dynamic, properties)


DELETE_ON_CLOSE = {Symbol("lifetime-policy"): Described(ULong(0x2B), [])}


@pytest.mark.parametrize("code", [0x28, 0x29], ids=["source", "target"])
@pytest.mark.parametrize(
    "policy",
    [None, ULong(0x2B), ULong(0x2C), ULong(0x2E), Symbol("amqp:delete-on-no-messages:list")],
    ids=str,
)
def test_3_5_3_the_answer_says_how_long_what_is_made_really_lives(
    realm: penstock.Realm, code: int, policy: Any
) -> None:
    """It lives as long as its link, whatever was asked for."""
    properties = None if policy is None else {Symbol("lifetime-policy"): Described(policy, [])}
    with talk(realm) as dialogue:
        dialogue.say(attached(code, dynamic_with(code, properties)))

        error_fields = dialogue.hear(ATTACH).values[5 if code == 0x28 else 6].value
        assert error_fields[5] == DELETE_ON_CLOSE


@pytest.mark.parametrize("code", [0x28, 0x29], ids=["source", "target"])
@pytest.mark.parametrize(
    "policy",
    [
        UInt(0x2B),
        "delete-on-close",
        Symbol("amqp:delete-on-close:list"),
        [],
        True,
        Described(ULong(0x28), []),
        Described(Symbol("example:for-ever:list"), []),
    ],
    ids=str,
)
def test_3_5_9_a_lifetime_policy_that_is_none_is_refused(
    realm: penstock.Realm, code: int, policy: Any
) -> None:
    with talk(realm) as dialogue:
        dialogue.say(attached(code, dynamic_with(code, {Symbol("lifetime-policy"): policy})))

        detach = dialogue.hear(DETACH)
        assert detach.condition == "amqp:invalid-field"
        assert "lifetime-policy" in detach.error[1]


@pytest.mark.parametrize("code", [0x28, 0x29], ids=["source", "target"])
def test_3_5_3_what_is_not_made_has_no_properties(realm: penstock.Realm, code: int) -> None:
    with talk(realm) as dialogue:
        dialogue.say(attached(code, dynamic_with(code, DELETE_ON_CLOSE, dynamic=False)))

        assert dialogue.hear(DETACH).condition == "amqp:invalid-field"


def attached(code: int, end: Raw) -> bytes:
    if code == 0x28:
        return attach_receiver("r", 0, source=end)
    return attach_sender("s", 0, target=end)


def test_3_5_3_a_subscription_is_looked_up_by_its_link_and_answered_with_its_address(
    realm: penstock.Realm,
) -> None:
    kept = terminus(0x28, "news", UInt(2), Symbol("never"), capability="topic")
    with talk(realm) as dialogue:
        dialogue.say(attach_receiver("kept", 0, source=kept))
        dialogue.hear(ATTACH)
        dialogue.say(frame_of(DETACH, UInt(0), False))
        dialogue.hear(DETACH)

        dialogue.say(frame_of(ATTACH, "kept", UInt(0), True, None, None, None, terminus(0x29, "c")))

        assert dialogue.hear(ATTACH).values[5].value[0] == "news"


# --- what nobody is told ------------------------------------------------------------------


def refusal(dialogue: Dialogue, attach: bytes) -> tuple[tuple[str, str], list[Any]]:
    """Why a link is refused, and what it was answered with; names are left out."""
    dialogue.say(attach)
    answer: Heard = dialogue.hear(ATTACH)
    condition, text = dialogue.hear(DETACH).error
    dialogue.say(frame_of(DETACH, UInt(0), True))
    for name in ("topics/hidden", "hidden", "topics/absent", "absent"):
        text = text.replace(name, "…")
    ends = [
        value.descriptor if isinstance(value, Described) else value for value in answer.values[5:7]
    ]
    return (condition, text), ends


@pytest.mark.parametrize("capability", ["queue", "topic", ""])
@pytest.mark.parametrize("code", [0x28, 0x29], ids=["receiver", "sender"])
def test_who_has_no_right_hears_the_same_of_what_there_is_and_what_there_is_not(
    guarded: penstock.Realm, code: int, capability: str
) -> None:
    with Dialogue(guarded.listen_amqp()) as dialogue:
        dialogue.say(sign_in(), opening(), begin())
        dialogue.bytes(8)
        for _ in range(2):
            dialogue.bytes(int.from_bytes(dialogue.bytes(4), "big") - 4)
        dialogue.hear(OPEN)
        said_of = {
            name: refusal(
                dialogue,
                attached(code, terminus(code, name, capability=capability)),
            )
            for name in ("hidden", "topics/hidden", "absent", "topics/absent")
        }

    assert len({str(text) for text in said_of.values()}) == 1, said_of
    assert next(iter(said_of.values()))[0][0] == "amqp:unauthorized-access"


def test_who_has_no_right_is_not_told_of_subscriptions(guarded: penstock.Realm) -> None:
    with guarded.connect() as root:
        root.channels.get("topics/hidden").durables.create("teller:kept")
    with Dialogue(guarded.listen_amqp()) as dialogue:
        dialogue.say(sign_in(), opening(), begin())
        dialogue.bytes(8)
        for _ in range(2):
            dialogue.bytes(int.from_bytes(dialogue.bytes(4), "big") - 4)
        dialogue.hear(OPEN)
        for name in ("kept", "none"):
            dialogue.say(
                frame_of(ATTACH, name, UInt(0), True, None, None, None, terminus(0x29, "c"))
            )

            answer = dialogue.hear(ATTACH)
            condition, text = dialogue.hear(DETACH).error
            dialogue.say(frame_of(DETACH, UInt(0), True))
            assert answer.values[5] is None
            assert condition == "amqp:not-found"
            assert text.endswith(f"subscription {name} does not exist")

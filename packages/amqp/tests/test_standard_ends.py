"""An error ends the object that the standard names: a link, a session or the connection (OASIS AMQP
1.0, transport, 2.4 to 2.8)."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import penstock
from packages.amqp.tests.coordinators import (
    BROKEN,
    INVALID,
    by_link,
    check_session_lives,
    coordinator,
    declare,
    discharge,
    granted,
    in_transaction,
)
from packages.amqp.tests.dialogue import (
    Dialogue,
    attach_receiver,
    attach_sender,
    begin,
    credit,
    on,
    opening,
    talk,
)
from packages.amqp.tests.frames import (
    AMQP,
    ATTACH,
    BEGIN,
    CLOSE,
    DETACH,
    DISPOSITION,
    END,
    FLOW,
    NULL,
    OPEN,
    TRANSFER,
    YES,
    Raw,
    frame,
    frame_of,
    message,
    performative,
    terminus,
    transfer,
)
from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import Symbol, UByte, UInt, encode

UNATTACHED = "amqp:session:unattached-handle"
IN_USE = "amqp:session:handle-in-use"
STOLEN = "amqp:link:stolen"
DELETED = "amqp:resource-deleted"
DECODE = "amqp:decode-error"


@pytest.fixture
def dialogue(realm: penstock.Realm, session: penstock.Session) -> Iterator[Dialogue]:
    session.queues.create("work")
    with talk(realm) as talking:
        yield talking


# --- sessions -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong",
    [transfer(7, 0, message()), credit(7, 10), frame_of(DETACH, UInt(7), True)],
    ids=["transfer", "flow", "detach"],
)
def test_2_8_17_a_handle_of_no_link_ends_the_session(dialogue: Dialogue, wrong: bytes) -> None:
    dialogue.say(attach_sender("s", 0), wrong, transfer(0, 0, message()))

    assert dialogue.hear(END).condition == UNATTACHED
    dialogue.say(frame_of(END))
    check_session_lives(dialogue)
    dialogue.say(begin())
    assert dialogue.hear(BEGIN).values[0] == 0, "its channel is free again"


def test_2_8_17_a_handle_that_is_taken_ends_the_session(dialogue: Dialogue) -> None:
    dialogue.say(attach_sender("s", 0), attach_sender("t", 0))

    assert dialogue.hear(END).condition == IN_USE
    check_session_lives(dialogue)


def test_2_5_4_what_a_session_held_is_free_once_it_was_ended(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    work = session.queues.get("work")
    work.push(b"x")
    dialogue.say(attach_receiver("r", 0), credit(0, 1))
    dialogue.hear(TRANSFER)

    dialogue.say(credit(9, 1))

    dialogue.hear(END)
    event = work.pop(timeout=20.0)
    assert event is not None
    assert event.data == b"x"


def test_2_5_4_nothing_of_a_session_that_was_ended_counts(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    """What was on its way is passed over, until the peer's own end."""
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)

    dialogue.say(
        credit(9, 1), transfer(0, 0, message(body="late")), attach_sender("t", 9), frame_of(END)
    )

    dialogue.hear(END)
    check_session_lives(dialogue)
    assert session.queues.get("work").pop(timeout=0) is None


@pytest.mark.parametrize(
    ("wrong", "condition"),
    [
        (frame_of(ATTACH, None, UInt(0), True), DECODE),
        (frame_of(ATTACH, "r", None, True), DECODE),
        (frame_of(ATTACH, "r", UInt(0)), DECODE),
        (frame_of(ATTACH, "s", UInt(0), False, UByte(2), UByte(0)), DECODE),
        (frame_of(ATTACH, "r", "0", True), DECODE),
        (frame_of(ATTACH, "r", UInt(0), True, UByte(3)), INVALID),
        (frame_of(ATTACH, Raw(b"\xa1\x02\xff\xfe"), UInt(0), True), None),
        (frame_of(ATTACH, "r" * 1_025, UInt(0), True), INVALID),
        (frame_of(ATTACH, "r", UInt(0), True, *[None] * 12), DECODE),
        (frame_of(FLOW, UInt(0)), DECODE),
        (frame_of(FLOW, UInt(0), UInt(1), UInt(0), UInt(1), *[None] * 8), DECODE),
        (frame_of(TRANSFER, None, UInt(0), b"0"), DECODE),
        (frame_of(TRANSFER, UInt(0), UInt(0), b"0" * 33), INVALID),
        (frame_of(TRANSFER, UInt(0), UInt(0)), INVALID),
        (frame_of(TRANSFER, UInt(0), None, b"0"), INVALID),
        (frame_of(DISPOSITION, None, UInt(0)), DECODE),
        (frame_of(DISPOSITION, True), DECODE),
        (frame_of(DISPOSITION, True, UInt(3), UInt(1)), INVALID),
        (frame_of(DETACH, None, True), DECODE),
        (frame_of(DETACH, UInt(0), True, Raw(performative(0x1D))), DECODE),
    ],
)  # fmt: skip
def test_1_4_a_field_that_is_wrong_ends_the_session_it_was_said_in(
    dialogue: Dialogue, wrong: bytes, condition: str | None
) -> None:
    dialogue.say(attach_sender("s", 0) if wrong[10] != ATTACH else b"", wrong)

    if condition is None:  # what is no text is no AMQP at all
        assert dialogue.hear(CLOSE).condition == "amqp:connection:framing-error"
        return
    assert dialogue.hear(END).condition == condition
    check_session_lives(dialogue)


def test_1_4_the_reason_names_the_field(dialogue: Dialogue) -> None:
    dialogue.say(frame_of(ATTACH, "r", UInt(0), True, UByte(3)))

    assert dialogue.hear(END).error[1] == "snd-settle-mode of attach is 3; allowed are 0 to 2"


def test_1_2_descriptors_may_be_long_or_names(dialogue: Dialogue) -> None:
    """The standard has a symbol and a number for each type, and two ways to write the number."""
    long = attach_sender("long", 0).replace(b"\x00\x53\x12", b"\x00\x80" + bytes(7) + b"\x12", 1)
    name = b"\x00" + encode(Symbol("amqp:attach:list"))
    named = attach_sender("named", 1).replace(b"\x00\x53\x12", name, 1)

    for raw_frame in (long, named):
        dialogue.say(len(raw_frame).to_bytes(4, "big") + raw_frame[4:])

    assert [dialogue.hear(ATTACH).values[0] for _ in range(2)] == ["long", "named"]


# --- connections --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("frames", "condition"),
    [
        (AMQP + frame_of(OPEN), DECODE),
        (AMQP + frame_of(OPEN, "c" * 256), INVALID),
        (AMQP + frame_of(OPEN, "c", "h", UInt(511)), INVALID),
        (AMQP + frame_of(OPEN, "c", *[None] * 10), DECODE),
        (AMQP + on(1, frame_of(OPEN, "c")), "amqp:connection:framing-error"),
        (AMQP + begin(), "amqp:not-allowed"),
        (opening() + frame_of(OPEN, "again"), "amqp:not-allowed"),
        (opening() + frame_of(BEGIN, None, UInt(0)), DECODE),
        (opening() + begin() + begin(), "amqp:not-allowed"),
        (opening() + credit(0, 1), "amqp:not-allowed"),
        (opening() + frame(performative(0x77)), "amqp:connection:framing-error"),
        (opening() + begin(2_000), "amqp:connection:framing-error"),
    ],
)  # fmt: skip
def test_2_4_what_belongs_to_no_session_ends_the_connection(
    realm: penstock.Realm, frames: bytes, condition: str
) -> None:
    with Dialogue(realm.listen_amqp()) as dialogue:
        dialogue.say(frames)

        assert dialogue.hear(CLOSE).condition == condition
        assert dialogue.is_hung_up()


# --- links --------------------------------------------------------------------------------


@pytest.mark.parametrize("channel", [0, 1], ids=["same session", "another session"])
def test_2_6_1_a_link_is_stolen_by_one_of_its_name(
    dialogue: Dialogue, session: penstock.Session, channel: int
) -> None:
    dialogue.say(attach_sender("s", 0), begin(1))
    first = by_link(dialogue, "s")

    dialogue.say(on(channel, attach_sender("s", 5)))

    detach = dialogue.hear(DETACH)
    assert (detach.channel, detach.handle) == first
    assert (detach.condition, detach.values[1]) == (STOLEN, True)
    by_link(dialogue, "s")
    granted(dialogue)
    dialogue.say(
        frame_of(DETACH, UInt(0), True), on(channel, transfer(5, 0, message(body="by it")))
    )
    assert dialogue.hear(DISPOSITION).values[4].descriptor == 0x24
    assert session.queues.get("work").pop() is not None


def test_2_6_1_a_link_is_stolen_by_another_connection_of_its_container(
    realm: penstock.Realm, dialogue: Dialogue, session: penstock.Session
) -> None:
    """What the former had not settled is the latter's."""
    session.queues.get("work").push(b"x")
    dialogue.say(attach_receiver("r", 0), credit(0, 1))
    dialogue.hear(TRANSFER)

    with talk(realm) as second:
        second.say(attach_receiver("r", 0), credit(0, 1))

        second.hear(TRANSFER)
        assert dialogue.hear(DETACH).condition == STOLEN
        dialogue.say(frame_of(DETACH, UInt(0), True), attach_sender("s", 0))
        by_link(dialogue, "s")


def test_2_6_1_a_durable_goes_over_to_the_link_that_takes_its_name(
    realm: penstock.Realm, dialogue: Dialogue, session: penstock.Session
) -> None:
    kept = terminus(0x28, "news", UInt(2), Symbol("never"), capability="topic")
    dialogue.say(attach_receiver("kept", 0, source=kept))
    by_link(dialogue, "kept")

    with talk(realm) as second:
        second.say(attach_receiver("kept", 0, source=kept))

        by_link(second, "kept")
        assert dialogue.hear(DETACH).condition == STOLEN
        dialogue.say(frame_of(DETACH, UInt(0), True))
        news = session.channels.get("news")
        news.publish(b"x")
        second.say(credit(0, 1))
        second.hear(TRANSFER)
        assert [durable.name for durable in news.durables.list()] == ["teller:kept"]


def test_2_6_1_nobody_steals_what_is_anothers(realm: penstock.Realm, dialogue: Dialogue) -> None:
    """Another container has links of its own, and so has the other direction."""
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)
    dialogue.say(attach_receiver("s", 1))
    by_link(dialogue, "s")

    with talk(realm, "another") as second:
        second.say(attach_sender("s", 0))
        by_link(second, "s")

    dialogue.say(transfer(0, 0, message()))
    assert dialogue.hear(DISPOSITION).values[4].descriptor == 0x24


def test_2_6_5_what_comes_by_a_stolen_link_ends_the_session(dialogue: Dialogue) -> None:
    dialogue.say(attach_sender("s", 0), attach_sender("s", 1), transfer(0, 0, message()))

    assert dialogue.hear(END).condition == "amqp:session:errant-link"


@pytest.mark.parametrize("kind", ["queues", "channels"])
def test_2_8_15_links_of_what_is_deleted_are_told(
    realm: penstock.Realm, session: penstock.Session, kind: str
) -> None:
    getattr(session, kind).create("there")
    capability = kind.removesuffix("s").replace("channel", "topic")
    source, target = (terminus(c, "there", capability=capability) for c in (0x28, 0x29))
    with talk(realm) as dialogue:
        dialogue.say(attach_sender("s", 0, target=target), attach_receiver("r", 1, source=source))
        by_link(dialogue, "s")
        by_link(dialogue, "r")

        getattr(session, kind).delete("there")

        assert [dialogue.hear(DETACH).condition for _ in range(2)] == [DELETED, DELETED]
        dialogue.say(
            frame_of(DETACH, UInt(0), True), frame_of(DETACH, UInt(1), True), attach_sender("t", 0)
        )
        by_link(dialogue, "t")


def test_4_4_a_transaction_cannot_be_discharged_once_its_queue_is_deleted(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    dialogue.say(coordinator(0))
    granted(dialogue)
    dialogue.say(transfer(0, 0, declare()))
    declared = dialogue.hear(DISPOSITION).values[4]
    (txn,) = declared.value
    dialogue.say(attach_sender("s", 1))
    granted(dialogue)
    dialogue.say(transfer(1, 1, message(), state=in_transaction(txn)))
    dialogue.hear(DISPOSITION)

    session.queues.delete("work")

    assert dialogue.hear(DETACH).condition == DELETED
    dialogue.say(transfer(0, 2, discharge(txn)))
    refused = dialogue.hear(DISPOSITION).values[4]
    assert refused.descriptor == 0x25
    assert str(refused.value[0].value[0]) == "amqp:transaction:rollback"


def test_2_8_16_a_message_before_there_is_credit_ends_its_link(dialogue: Dialogue) -> None:
    """And it is not said to be taken."""
    dialogue.say(attach_sender("s", 0), transfer(0, 0, message()))

    frames = [dialogue.next() for _ in range(3)]

    assert {answer.condition for answer in frames if answer.code == DETACH} == {
        "amqp:link:transfer-limit-exceeded"
    }
    assert [answer.values[4].descriptor for answer in frames if answer.code == DISPOSITION] == [
        0x26
    ]


# --- messages -----------------------------------------------------------------------------


def test_3_4_3_a_message_that_cannot_be_read_is_rejected(dialogue: Dialogue) -> None:
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)
    dialogue.say(transfer(0, 0, BROKEN), transfer(0, 1, message()))

    said_of = [dialogue.hear(DISPOSITION).values[4] for _ in range(2)]

    assert [described.descriptor for described in said_of] == [0x25, 0x24]
    assert str(said_of[0].value[0].value[0]) == DECODE


def test_3_4_3_whoever_waits_for_no_answer_loses_the_link(dialogue: Dialogue) -> None:
    settled = frame_of(TRANSFER, UInt(0), UInt(0), b"0", UInt(0), True, payload=BROKEN)
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)
    dialogue.say(settled)

    assert dialogue.hear(DETACH).condition == DECODE
    dialogue.say(frame_of(DETACH, UInt(0), True), attach_sender("t", 0))
    by_link(dialogue, "t")


# --- transactions -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("instruction", "condition"),
    [
        (discharge(), DECODE),
        (discharge(None), DECODE),
        (discharge(UInt(0)), DECODE),
        (discharge(b"t", "no"), DECODE),
        (section(0x77, performative(0x32, encode(b"t"), YES, NULL)), DECODE),
        (discharge(bytes(33)), INVALID),
        (discharge(b"another"), "amqp:transaction:unknown-id"),
        (declare(None, None), DECODE),
        (declare(b"global"), "amqp:not-implemented"),
        (section(0x77, b"\x00\x53\x31\x40"), DECODE),
        (section(0x77, encode("declare")), DECODE),
        (BROKEN, DECODE),
    ],
)  # fmt: skip
def test_4_3_what_a_coordinator_cannot_do_is_rejected(
    dialogue: Dialogue, instruction: bytes, condition: str
) -> None:
    dialogue.say(coordinator(0))
    granted(dialogue)
    dialogue.say(transfer(0, 0, instruction), transfer(0, 1, declare()))

    refused, declared = [dialogue.hear(DISPOSITION).values[4] for _ in range(2)]
    assert str(refused.value[0].value[0]) == condition
    assert declared.descriptor == 0x33


def test_4_3_who_takes_no_rejection_loses_the_link_to_the_coordinator(dialogue: Dialogue) -> None:
    dialogue.say(coordinator(0, "amqp:accepted:list"))
    granted(dialogue)
    dialogue.say(transfer(0, 0, discharge(b"another")))

    detach = dialogue.next()
    assert (detach.code, detach.condition) == (DETACH, "amqp:transaction:unknown-id")


def test_3_5_3_who_takes_no_rejection_loses_the_link_with_the_message(dialogue: Dialogue) -> None:
    source = Raw(performative(0x28, *[b"\x40"] * 9, encode(Symbol("amqp:accepted:list"))))
    ends = source, terminus(0x29, "work", capability="queue")
    dialogue.say(
        frame_of(ATTACH, "s", UInt(0), False, UByte(0), UByte(0), *ends, None, None, UInt(0))
    )
    granted(dialogue)
    dialogue.say(transfer(0, 0, BROKEN))

    assert dialogue.hear(DETACH).condition == DECODE


def test_4_4_2_what_is_settled_in_no_transaction_comes_again(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    work = session.queues.get("work")
    work.push(b"x")
    dialogue.say(attach_receiver("r", 0), credit(0, 1))
    dialogue.hear(TRANSFER)

    dialogue.say(frame_of(DISPOSITION, True, UInt(0), None, True, in_transaction(b"none", 0x24)))

    assert dialogue.hear(DETACH).condition == "amqp:transaction:unknown-id"
    event = work.pop(timeout=20.0)
    assert event is not None
    assert (event.data, event.redelivery_count) == (b"x", 1)


def test_4_4_3_messages_are_not_acquired_in_transactions(dialogue: Dialogue) -> None:
    """Whoever does not support that has to end the link."""
    dialogue.say(attach_receiver("r", 0), credit(0, 1, properties={Symbol("txn-id"): b"t"}))

    assert dialogue.hear(DETACH).condition == "amqp:not-implemented"

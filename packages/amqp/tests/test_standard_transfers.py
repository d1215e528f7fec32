"""Transfers and delivery states, and the errors in them (OASIS AMQP 1.0, transport 2.5 to 2.8,
messaging 3.4, transactions 4.4)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

import penstock
from packages.amqp.tests.coordinators import (
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
    Heard,
    attach_receiver,
    attach_sender,
    begin,
    credit,
    on,
    opening,
    talk,
)
from packages.amqp.tests.frames import (
    ATTACH,
    BEGIN,
    DETACH,
    DISPOSITION,
    END,
    TRANSFER,
    Raw,
    frame_of,
    message,
    performative,
    terminus,
    transfer,
)
from penstock_amqp.wire.sections import section
from penstock_amqp.wire.types import Described, Symbol, UByte, UInt, ULong, encode, encode_list

UNKNOWN_TRANSACTION = "amqp:transaction:unknown-id"
NOT_IMPLEMENTED = "amqp:not-implemented"


@pytest.fixture
def dialogue(realm: penstock.Realm, session: penstock.Session) -> Iterator[Dialogue]:
    session.queues.create("work")
    with talk(realm) as talking:
        yield talking


def waiting(session: penstock.Session) -> int:
    return session.queues.get("work").info().events


def last_of(disposition: Heard) -> tuple[int, int]:
    """Its channel, and the last delivery that it is about."""
    first, last = disposition.values[1:3]
    return disposition.channel, first if last is None else last


def symbolic(name: str, *values: Any) -> Raw:
    """A list described by its symbol."""
    encoded = [field.data if isinstance(field, Raw) else encode(field) for field in values]
    return Raw(b"\x00" + encode(Symbol(name)) + encode_list(encoded))


def numeric(code: int, *values: Any) -> Raw:
    return Raw(performative(code, *(encode(field) for field in values)))


# --- transactions that are not open -------------------------------------------------------


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize(
    "state",
    [in_transaction(b"old"), symbolic("amqp:transactional-state:list", b"old")],
    ids=["number", "symbol"],
)
def test_4_4_1_a_message_in_an_unknown_transaction_is_not_stored(
    dialogue: Dialogue, session: penstock.Session, state: Raw, settled: bool
) -> None:
    """Also where no coordinator was attached: a client goes on with a transaction of a connection
    that was lost."""
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)

    fields = (UInt(0), UInt(0), b"0", UInt(0), settled, False, None, state)
    dialogue.say(frame_of(TRANSFER, *fields, payload=message()))

    if settled:
        assert dialogue.hear(DETACH).condition == UNKNOWN_TRANSACTION
    else:
        refused = dialogue.hear(DISPOSITION).values[4]
        assert refused.descriptor == 0x25
        assert str(refused.value[0].value[0]) == UNKNOWN_TRANSACTION
    assert waiting(session) == 0


# --- descriptors that are symbols ---------------------------------------------------------


def test_1_2_a_transaction_may_be_named_by_symbols(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    """From the coordinator to the discharge; what is rolled back is not stored."""
    source, target = symbolic("amqp:source:list"), symbolic("amqp:coordinator:list")
    modes = UByte(0), UByte(0)
    dialogue.say(
        frame_of(ATTACH, "tx", UInt(0), False, *modes, source, target, None, None, UInt(0))
    )
    attached = dialogue.hear(ATTACH)
    assert attached.values[6].descriptor == 0x30
    granted(dialogue)
    dialogue.say(attach_sender("s", 1))
    granted(dialogue)

    for number, fails in enumerate((True, False)):
        declare_fields = symbolic("amqp:declare:list").data
        dialogue.say(transfer(0, 3 * number, section(0x77, declare_fields)))
        (txn,) = dialogue.hear(DISPOSITION).values[4].value
        state = symbolic("amqp:transactional-state:list", txn)
        dialogue.say(transfer(1, 3 * number + 1, message(), state=state))
        assert dialogue.hear(DISPOSITION).values[4].descriptor == 0x34
        assert waiting(session) == 0
        dialogue.say(transfer(0, 3 * number + 2, discharge(txn, fails)))
        assert dialogue.hear(DISPOSITION).values[4].descriptor == 0x24

    assert waiting(session) == 1


OUTCOMES = {
    "accepted": ((), 0, 0),
    "rejected": ((), 0, 1),
    "released": ((), 1, 0),
    "modified": ((True, True), 0, 1),
}
"""Fields of each outcome, and how many events are in the queue and in its dead event store then."""


@pytest.mark.parametrize("is_named", [False, True], ids=["number", "symbol"])
@pytest.mark.parametrize("outcome", OUTCOMES)
@pytest.mark.parametrize("in_one", [False, True], ids=["alone", "in a transaction"])
def test_1_2_an_outcome_may_be_named_by_its_symbol(
    realm: penstock.Realm, session: penstock.Session, outcome: str, is_named: bool, in_one: bool
) -> None:
    dead = session.queues.create("dead")
    work = session.queues.create("work", dead_event_store="dead")
    work.push(b"x")
    fields, remaining, buried = OUTCOMES[outcome]
    code = 0x24 + list(OUTCOMES).index(outcome)
    state = symbolic(f"amqp:{outcome}:list", *fields) if is_named else numeric(code, *fields)
    with talk(realm) as dialogue:
        dialogue.say(attach_receiver("r", 0), credit(0, 1))
        dialogue.hear(TRANSFER)
        txn = b""
        if in_one:
            dialogue.say(coordinator(1))
            granted(dialogue)
            dialogue.say(transfer(1, 0, declare()))
            (txn,) = dialogue.hear(DISPOSITION).values[4].value
            name = "amqp:transactional-state:list"
            state = (
                symbolic(name, txn, state)
                if is_named
                else Raw(performative(0x34, encode(txn), state.data))
            )
        dialogue.say(frame_of(DISPOSITION, True, UInt(0), None, True, state))
        if in_one:
            dialogue.say(transfer(1, 1, discharge(txn)))
            assert dialogue.hear(DISPOSITION).values[4].descriptor == 0x24
        dialogue.say(frame_of(DETACH, UInt(0), True))
        dialogue.hear(DETACH)

    assert work.info().events == remaining
    assert dead.info().events == buried


@pytest.mark.parametrize(
    ("ends", "kind"),
    [
        ((terminus(0x28, "here"), symbolic("example:shelf:list", "work")), "target"),
        ((terminus(0x28, "here"), numeric(0x99, "work")), "target"),
        ((numeric(0x99, "here"), terminus(0x29, "work")), "source"),
    ],
    ids=["target, symbol", "target, number", "source"],
)
def test_3_5_an_end_of_an_unknown_type_is_refused(
    dialogue: Dialogue, ends: tuple[Raw, Raw], kind: str
) -> None:
    dialogue.say(
        frame_of(ATTACH, "s", UInt(0), False, UByte(0), UByte(0), *ends, None, None, UInt(0))
    )

    detach = dialogue.hear(DETACH)
    assert detach.condition == NOT_IMPLEMENTED
    assert kind in detach.error[1]
    dialogue.say(frame_of(DETACH, UInt(0), True), attach_sender("t", 1))
    by_link(dialogue, "t")


# --- ids, tags and formats ----------------------------------------------------------------


def parts(*further: Any, form: int = 0) -> bytes:
    """A message in two transfers; ``further`` is id, tag and format of the second."""
    begins = frame_of(TRANSFER, UInt(0), UInt(0), b"0", UInt(form), False, True, payload=message())
    return begins + frame_of(TRANSFER, UInt(0), *further, False, False)


def again(number: int, tag: bytes = b"1") -> bytes:
    fields = UInt(0), UInt(number), tag, UInt(0)
    return frame_of(TRANSFER, *fields, False, False, payload=message())


@pytest.mark.parametrize(
    "wrong",
    [
        again(0) + again(0),
        again(0) + again(2),
        again(5) + again(4),
        parts(UInt(1), None, None),
    ],
    ids=["twice", "a gap", "a step back", "another one for the rest"],
)
def test_2_7_5_a_delivery_id_out_of_turn_ends_the_session(dialogue: Dialogue, wrong: bytes) -> None:
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)

    dialogue.say(wrong)

    ended = dialogue.hear(END)
    assert ended.condition == INVALID
    assert "delivery-id of transfer" in ended.error[1]
    dialogue.say(frame_of(END))
    check_session_lives(dialogue)


def test_2_5_6_a_transfer_before_there_is_a_window_ends_the_session(
    realm: penstock.Realm, session: penstock.Session
) -> None:
    session.queues.create("work")
    with Dialogue(realm.listen_amqp()) as dialogue:
        dialogue.say(opening() + begin() + attach_sender("s", 0) + transfer(0, 0, message()))

        assert dialogue.hear(END).condition == "amqp:session:window-violation"
        dialogue.say(frame_of(END))
        check_session_lives(dialogue)
    assert waiting(session) == 0


@pytest.mark.parametrize(
    ("wrong", "condition"),
    [
        (parts(None, b"1", None), INVALID),
        (parts(None, None, UInt(1)), INVALID),
        (parts(None, None, UInt(0x80013700)), INVALID),
        (frame_of(TRANSFER, UInt(0), UInt(0), b"0", UInt(1), payload=message()), NOT_IMPLEMENTED),
        (parts(None, None, None, form=1), NOT_IMPLEMENTED),
        (
            frame_of(TRANSFER, UInt(0), UInt(0), b"0", UInt(0), True, False, UByte(1),
                     payload=message()),
            INVALID,
        ),
    ],
    ids=["tag", "format", "format of another owner", "unknown format", "in parts", "settle mode"],
)  # fmt: skip
def test_2_7_5_what_contradicts_its_delivery_ends_the_link(
    dialogue: Dialogue, session: penstock.Session, wrong: bytes, condition: str
) -> None:
    """The message is not stored, and the session goes on where the peer is."""
    dialogue.say(attach_sender("s", 0), attach_sender("t", 1))
    granted(dialogue)
    granted(dialogue)

    dialogue.say(wrong, transfer(1, 1, message()))

    assert dialogue.hear(DETACH).condition == condition
    dialogue.say(frame_of(DETACH, UInt(0), True))
    dialogue.hear(DISPOSITION, lambda answer: last_of(answer) == (0, 1))
    assert waiting(session) == 1


def test_2_7_5_the_rest_of_a_delivery_may_say_what_its_first_transfer_said(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)

    dialogue.say(parts(UInt(0), b"0", UInt(0)), transfer(0, 1, message()))

    answer = dialogue.hear(DISPOSITION, lambda answer: 1 in (answer.values[1], answer.values[2]))
    assert answer.values[4].descriptor == 0x24
    assert waiting(session) == 2


def test_2_7_5_a_resumed_delivery_that_is_not_known_is_ignored(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    dialogue.say(attach_sender("s", 0))
    granted(dialogue)
    fields = UInt(0), UInt(0), b"0", UInt(0), False, False, None, None, True

    dialogue.say(frame_of(TRANSFER, *fields, payload=message()), transfer(0, 1, message()))

    accepted = dialogue.hear(DISPOSITION, lambda answer: answer.values[1] == 1)
    assert accepted.values[4] == Described(ULong(0x24), [])
    assert waiting(session) == 1


def test_2_6_12_deliveries_of_two_sessions_have_ids_of_their_own(
    dialogue: Dialogue, session: penstock.Session
) -> None:
    dialogue.say(begin(1), attach_sender("s", 0), on(1, attach_sender("t", 0)))
    dialogue.hear(BEGIN)
    for _ in range(2):
        granted(dialogue)

    for number in range(40):
        dialogue.say(again(number + 7), on(1, again(number)))

    unanswered = {(0, 46), (1, 39)}
    while unanswered:
        unanswered.discard(last_of(dialogue.hear(DISPOSITION)))
    assert waiting(session) == 80

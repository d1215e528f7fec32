"""The largest number that each field of a command can have goes through every step that follows:
decide, apply, the journal's block, a snapshot, an export, and a restart from either."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import Any, Final, get_args, get_type_hints

import pytest
from msgspec import Struct
from msgspec.structs import asdict, replace

from penstock_core.bounds import EVENT_ID_MAX, NUMBER_MAX, TIME_US_MAX, TTL_MS_MAX
from penstock_core.channel.channel import ChannelMachine
from penstock_core.channel.retention import check_limits
from penstock_core.ids.ids import Span
from penstock_core.messages.delivery import HoldEvents, SetDemand, Skip, Withhold
from penstock_core.messages.durables import AddDurable, PurgeOutstanding
from penstock_core.messages.kinds import Command
from penstock_core.messages.publishing import Publish
from penstock_core.messages.retention import PurgeEvents, Quarantine, RemoveRedriven, Sweep
from penstock_core.messages.seats import Detach, TakeLease, TakeSeat
from penstock_core.messages.seeking import Seek
from penstock_core.messages.settlements import Ack, AckPrevious, BuryEvents, ExtendTime, RollBack
from penstock_core.messages.subscribers import (
    AddKnownSubscriber,
    AddSubscriber,
    Disconnect,
    GrantCredit,
)
from penstock_core.realm.exports import check, export_state
from penstock_core.vocabulary.backoff import Backoff
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.digest import Digest
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_server.bootstrap import rules
from penstock_server.runtime.store.records import FactRecord, decode_block, encode_block
from penstock_testing.play import Play, publish, span

NUMBERS: Final = (0, 1 << 31, 1 << 50, (1 << 53) + 1, EVENT_ID_MAX, NUMBER_MAX)
"""Numbers at which a product or an encoding may overflow; a request has none above the last."""
SPANS: Final = (
    (Span(EVENT_ID_MAX, EVENT_ID_MAX + 1),),
    (Span(0, EVENT_ID_MAX + 1),),
    (Span(0, 1), Span(EVENT_ID_MAX, EVENT_ID_MAX + 1)),
)
HELD: Final = (span(0, 1),)

COMMANDS: Final[tuple[Command, ...]] = (
    Publish(Digest(2, 200, 100, ttls=((1_000, (Span(0, 1),)),)), "producer", 1),
    AddDurable("new", "shared", backoff=Backoff(100), max_deliveries=3),
    PurgeOutstanding("d", HELD),
    TakeSeat("d", 9, "s9", 2),
    TakeLease("d", 9, "s9", 2, ack_timeout_ms=1_000),
    SetDemand(3, 1),
    AddSubscriber(9, "s9", 0, credit=1),
    AddKnownSubscriber(9, "s9", 0, credit=1, place="s9/1"),
    GrantCredit(2, 1, 1),
    Disconnect(2, HELD),
    Ack(1, HELD),
    AckPrevious(1, 1),
    RollBack(1, HELD, delay_ms=1_000),
    Skip(1, HELD),
    Withhold(2, HELD, is_full=False),
    Detach(1),
    PurgeEvents(HELD),
    Sweep(),
    Quarantine(HELD),
    RemoveRedriven(HELD),
    ExtendTime(1, HELD, 1_000),
    HoldEvents(4, Span(0, 2)),
    BuryEvents(1, HELD),
    Seek("d", 1),
)
WITHOUT_NUMBERS: Final = frozenset(
    (
        "AssignLanes",  # made by the realm, of ids that are stored
        "AwaitSeats",
        "ConfirmRecall",
        "Edit",
        "EndChoosing",
        "EndRelay",
        "GiveUpSeats",
        "Release",
        "RemoveDurable",
        "SingleOut",
        "StallSession",
    )
)
"""Commands whose numbers are ids given by the realm."""


def is_of(hint: object, wanted: type) -> bool:
    return hint is wanted or any(is_of(part, wanted) for part in get_args(hint))


def extremes(command: Struct) -> Iterator[tuple[str, Struct]]:
    """The command once for each of its numbers, and each of its sets of ids, at each extreme."""
    for name, hint in get_type_hints(type(command)).items():
        if name.startswith("__"):
            continue
        if hint is Span:
            yield from ((f"{name}={ids[0]}", replace(command, **{name: ids[0]})) for ids in SPANS)
        elif is_of(hint, Span):
            yield from ((f"{name}={ids}", replace(command, **{name: ids})) for ids in SPANS)
        elif hint is int or is_of(hint, int):
            yield from ((f"{name}={n}", replace(command, **{name: n})) for n in NUMBERS)
        elif isinstance(inner := getattr(command, name), Backoff):
            for what, changed in extremes(inner):
                yield f"{name}.{what}", replace(command, **{name: changed})


CASES: Final = [
    pytest.param(wanted, id=f"{type(command).__name__}.{what}")
    for command in COMMANDS
    for what, wanted in extremes(command)
]


def busy() -> Play:
    """A channel with events that a durable's client, a subscriber and a lease hold."""
    definition = Definition(type="mixed", dead_event_store="dead", retain_consumed=True)
    play = Play(ChannelMachine("orders", definition, rules()))
    play.do(AddDurable("d", "shared", backoff=Backoff(100)))
    play.do(AddDurable("held", "exclusive"))
    play.do(TakeSeat("d", 1, "s1", 10))
    play.do(AddSubscriber(2, "s2", 0, credit=10, confirms=True))
    play.do(TakeSeat("d", 3, "s3", 10, pull=True))
    play.do(TakeSeat("held", 4, "s4", sole=True))
    play.do(publish(4))
    return play


def goes_on(play: Play) -> None:
    """Write and read every form of the state, and continue from it."""
    play.wait(10)
    play.do(publish(1))
    play.snapshot()
    play.do(publish(1))
    records = tuple(FactRecord(1, fact) for fact in play.recorded)
    (block,) = encode_block(play.now_us, records, ())
    header, _ = decode_block(memoryview(block))
    assert header.records == records
    check(export_state(play.channel.state), rules())
    next_id = play.channel.state.next_id
    play.restart()
    play.do(publish(1))
    assert play.channel.state.next_id > next_id
    play.restart_from_snapshot()
    play.wait(5_000)
    play.do(publish(1))


def test_every_command_is_in_the_table() -> None:
    def below(kind: type[Command]) -> Iterator[type[Command]]:
        for command_type in kind.__subclasses__():
            yield command_type
            yield from below(command_type)

    table = {type(command).__name__ for command in COMMANDS} | WITHOUT_NUMBERS

    commands = [
        command_type
        for command_type in below(Command)
        if command_type.__module__.startswith("penstock_")
    ]
    assert {command_type.__name__ for command_type in commands} == table


@pytest.mark.parametrize("command", CASES)
def test_an_extreme_number_of_a_command_is_refused_or_can_be_kept(command: Command) -> None:
    play = busy()

    with suppress(PenstockError):  # other tests compare the words of refusals
        play.do(command)

    goes_on(play)


@pytest.mark.spec("T2")
@pytest.mark.parametrize("ttl_ms", [TTL_MS_MAX, (1 << 53) * 1_000, NUMBER_MAX])
@pytest.mark.parametrize("kind", ["channel", "schedule"])
def test_an_events_own_ttl_can_be_kept_however_long(kind: Any, ttl_ms: int) -> None:
    """Version 0.1.0 stored every TTL up to 2^63 - 1."""
    play = Play(ChannelMachine("orders", Definition(type="mixed", kind=kind), rules()))

    play.do(publish(2, ttls=((ttl_ms, (Span(0, 1),)),)))

    (ends_us,) = play.channel.state.ages.ends_us
    assert play.now_us < ends_us <= TIME_US_MAX
    assert play.channel.state.ages.due_us(0) == ends_us
    goes_on(play)
    assert 0 in play.channel.state.stored


def of_definitions() -> Iterator[tuple[str, Definition]]:
    for number in NUMBERS:
        for name, value in asdict(Definition()).items():
            if type(value) is int:
                yield name, replace(Definition(), **{name: number})
        for name, value in asdict(Storage()).items():
            if type(value) is int:
                yield name, Definition(storage=replace(Storage(), **{name: number}))
        yield "keys", Definition(keys={"sku": number})
        for name in ("first", "most", "seed"):
            bounds = {"first": 100, "most": 100, "seed": 0, name: number}
            yield f"backoff.{name}", Definition(kind="queue", backoff=Backoff(**bounds))


@pytest.mark.parametrize(
    "definition",
    [
        pytest.param(settings, id=f"{name}-{index}")
        for index, (name, settings) in enumerate(of_definitions())
    ],
)
def test_an_extreme_attribute_is_refused_or_can_be_kept(definition: Definition) -> None:
    try:
        check_limits(definition)
    except InvalidArgument:
        return
    play = Play(ChannelMachine("orders", definition, rules()))

    play.do(publish(2))

    goes_on(play)

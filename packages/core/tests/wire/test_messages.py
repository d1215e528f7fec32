"""Messages arrive as they were sent, and other bytes are a protocol violation."""

from __future__ import annotations

import contextlib
import importlib
import pkgutil
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock_core import api
from penstock_core.api.access import KEY_BYTES, SALT_BYTES, Verifier
from penstock_core.api.realm import Ping
from penstock_core.api.requests import Request
from penstock_core.ids.ids import Span
from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.vocabulary.start_positions import FromEarliest, FromId, FromLatest, FromTime
from penstock_core.wire.native import messages as wire
from penstock_core.wire.native.messages import FromClient, FromNode, FromServer, Message
from penstock_core.wire.native.tags import TAGS
from tests.thorough import examples

TEXT = st.text(max_size=8)
StructT = TypeVar("StructT", bound=msgspec.Struct)
COUNT = st.integers(0, 2**63 - 2)  # the bounds of an event id, the narrowest there are
SPANS = st.lists(st.builds(Span, COUNT, COUNT), max_size=3).map(tuple)
STARTS = st.one_of(
    st.builds(FromId, COUNT),
    st.just(FromEarliest()),
    st.just(FromLatest()),
    st.builds(FromTime, st.integers(-(2**62), 2**62)),
)
DEFINITIONS = st.builds(
    Definition, type=TEXT, ttl=COUNT, capacity=COUNT, storage=st.builds(Storage, st.booleans())
)
ANSWERS = st.recursive(
    st.none() | st.booleans() | COUNT | TEXT, lambda inner: st.lists(inner, max_size=3)
)
st.register_type_strategy(Span, st.builds(Span, COUNT, COUNT))
st.register_type_strategy(Definition, DEFINITIONS)
st.register_type_strategy(int, COUNT)
st.register_type_strategy(str, TEXT)
st.register_type_strategy(bytes, st.binary(max_size=KEY_BYTES))  # the narrowest bound there is
st.register_type_strategy(float, st.floats(allow_nan=False))  # NaN equals nothing, itself neither
st.register_type_strategy(
    Verifier,
    st.builds(
        Verifier,
        st.binary(min_size=SALT_BYTES, max_size=SALT_BYTES),
        COUNT,
        st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
        st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES),
    ),
)
BY_FIELD: dict[str, st.SearchStrategy[object]] = {
    "start": STARTS,
    "to": STARTS,
    "definition": DEFINITIONS,
    "spans": SPANS,
    "answer": ANSWERS,
}


def made(kind: type[StructT]) -> st.SearchStrategy[StructT]:
    fields = msgspec.structs.fields(kind)
    special = {field.name: BY_FIELD[field.name] for field in fields if field.name in BY_FIELD}
    return st.builds(
        kind,
        **special,
        **{field.name: st.from_type(field.type) for field in fields if field.name not in special},
    )


@pytest.mark.parametrize("kind", get_args(FromClient))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_a_client_message_arrives_as_it_was_sent(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(made(kind))

    assert wire.decode_from_client(memoryview(wire.encode(message))) == message


@pytest.mark.parametrize("kind", TAGS.values())
@settings(max_examples=examples(20))
@given(data=st.data())
def test_a_request_arrives_as_it_was_asked(kind: type[Request[Any]], data: st.DataObject) -> None:
    message = wire.Asked(data.draw(COUNT), data.draw(made(kind)))

    assert wire.decode_from_client(memoryview(wire.encode(message))) == message


@pytest.mark.parametrize("kind", get_args(FromServer))
@settings(max_examples=examples(20))
@given(data=st.data())
def test_a_server_message_arrives_as_it_was_sent(kind: type[Message], data: st.DataObject) -> None:
    message = data.draw(made(kind))

    assert wire.decode_from_server(memoryview(wire.encode(message))) == message


def test_every_message_is_in_one_of_the_two_directions() -> None:
    def below(kind: type[Message]) -> set[type[Message]]:
        children = kind.__subclasses__()
        return (
            {kind}.union(*map(below, children))
            if kind.__struct_config__.tag
            else set().union(*map(below, children))
        )

    assert below(Message) == {
        *get_args(FromClient),
        *get_args(FromServer),
        *get_args(FromNode),
    }


@pytest.mark.parametrize("kind", get_args(FromNode), ids=lambda kind: kind.__name__)
def test_what_a_node_says_begins_with_what_older_clients_know(kind: type[Message]) -> None:
    base: type[Message]
    (base,) = [base for base in get_args(FromServer) if base in kind.__mro__]
    fields = [field.name for field in msgspec.structs.fields(kind)]

    older = [field.name for field in msgspec.structs.fields(base)]
    assert fields[: len(older)] == older
    assert len(fields) > len(older)
    assert kind.__struct_config__.tag == base.__struct_config__.tag
    assert set(get_args(FromClient)) & set(get_args(FromServer)) == {wire.Schema}


OTHERS_ASK = {
    "AddUser",
    "BrowseEvents",
    "BrowseOutstanding",
    "CancelScheduled",
    "ChangePassword",
    "CountDurablePurge",
    "CountPurge",
    "DescribeMqtt",
    "DescribePipeline",
    "EndConnection",
    "ExplainSelector",
    "ExportTar",
    "ExtendLease",
    "ExtendPatternLease",
    "FetchEvents",
    "FetchFromPattern",
    "ImportTar",
    "IssueToken",
    "ListConnections",
    "ListPipelines",
    "ListScheduled",
    "ListTopics",
    "LoadTable",
    "LogIn",
    "LogOut",
    "PopEvents",
    "ReadEvent",
    "ReadHistory",
    "ReadKeyState",
    "ReadRates",
    "ReadRetained",
    "ResetPassword",
    "SettleLease",
    "SettlePatternLease",
    "SummarizeDead",
    "WatchEvents",
}
"""Requests that only front ends other than the native protocol make."""


def test_every_request_has_a_tag_but_what_only_other_front_ends_ask() -> None:
    for module in pkgutil.iter_modules(api.__path__):
        importlib.import_module(f"{api.__name__}.{module.name}")

    def below(kind: type[Request[Any]]) -> set[type[Request[Any]]]:
        return {*kind.__subclasses__()}.union(*map(below, kind.__subclasses__()))

    untagged = below(Request) - {*TAGS.values()}
    assert {kind.__name__ for kind in untagged} == OTHERS_ASK


def test_tags_are_given_once() -> None:
    kinds = {*get_args(FromClient), *get_args(FromServer)}
    tags = [*TAGS, *(kind.__struct_config__.tag for kind in kinds)]

    assert len({*tags}) == len(tags)


@given(st.binary(max_size=200))
def test_random_bytes_are_a_violation_or_a_message(junk: bytes) -> None:
    for decode in (wire.decode_from_client, wire.decode_from_server):
        with contextlib.suppress(RemoteProtocolViolation):
            assert isinstance(decode(memoryview(junk)), Message | wire.Unreadable)


@pytest.mark.parametrize("tag", [b"\x65", b"\x0a", b"\x3c"])
@pytest.mark.parametrize("opener", [b"\x91", b"\x81\xa1a"])
def test_nesting_without_end_is_a_violation(tag: bytes, opener: bytes) -> None:
    deep = b"\x93" + tag + b"\x01" + opener * 60_000

    for decode in (wire.decode_from_client, wire.decode_from_server):
        with pytest.raises(RemoteProtocolViolation):
            decode(memoryview(deep))


@pytest.mark.parametrize(
    "header",
    [b"", b"\xc0", b"\x90", b"\x91\x02", b"\x92\x0b\x01", b"\x93\x0b\x01\x02", b"\x93\x7f\x01\x02"],
    ids=["empty", "nil", "no tag", "no fields", "one short", "wrong type", "unknown tag"],
)
def test_a_malformed_header_is_a_violation(header: bytes) -> None:
    with pytest.raises(RemoteProtocolViolation, match="not a client message"):
        wire.decode_from_client(memoryview(header))


def test_a_server_message_from_a_client_is_a_violation() -> None:
    with pytest.raises(RemoteProtocolViolation, match="not a client message"):
        wire.decode_from_client(memoryview(wire.encode(wire.Finished(1))))


def test_a_value_beyond_its_bound_is_refused_with_the_request_it_came_in() -> None:
    refusals: list[tuple[list[object], str]] = [
        ([46, 7, 2, [[0, 2**63]], False, False], "spans[0][1] must be at most"),
        ([46, 7, 2, [[-1, 3]], False, False], "spans[0][0] must be at least 0"),
        ([30, 7, 1, "x" * 4_081, "shared", ["FromEarliest"]], "name must have at most 4080"),
        ([30, 7, 1, "x", "y" * 256, ["FromEarliest"]], "type must have at most 255 characters"),
        ([23, 7, ["s"] * 10_001], "stages must have at most 10000 entries"),
        ([60, 7, 1, 2, 3, "more than it has"], ""),
    ]
    for header, refusal in refusals:
        refused = wire.decode_from_client(memoryview(msgspec.msgpack.encode(header)))

        if refusal:
            assert isinstance(refused, wire.Unreadable)
            assert refused.request == 7
            assert refusal in str(refused.reason)
        else:
            assert refused == wire.Asked(7, Ping())


def test_what_no_client_says_is_a_violation() -> None:
    samples: list[object] = [
        [46],
        [46, 7],
        [999, 1],
        ["x"],
        [2, -1],
        [46, 2**63, 1, [], False, False],
        {},
    ]
    for header in samples:
        with pytest.raises(RemoteProtocolViolation, match="not a client message"):
            wire.decode_from_client(memoryview(msgspec.msgpack.encode(header)))


def test_forms_of_requests_are_made_as_they_come_whoever_asks_for_them() -> None:
    fresh = wire._FromClients()
    headers = [msgspec.msgpack.encode((tag,)) for tag in TAGS]

    def too_short() -> int:
        refused = 0
        for header in headers:
            try:
                fresh.decode(memoryview(header))
            except msgspec.ValidationError:
                refused += 1
        return refused

    with ThreadPoolExecutor(4) as threads:
        refused = [
            error_future.result() for error_future in [threads.submit(too_short) for _ in range(4)]
        ]

    assert refused == [len(TAGS)] * 4
    assert len(fresh.makers) == len(TAGS)

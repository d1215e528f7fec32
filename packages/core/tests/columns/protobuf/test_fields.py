"""Selectors on the fields of messages (SEM P1, P2), the columns against one message at a time."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import (
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
)

import penstock
from penstock_core.columns.events.body import body_of
from penstock_core.columns.protobuf import TYPE_HEADER, Messages, descriptors_of, fields_of
from penstock_core.columns.selectors import Selector
from tests.counting import calls_during
from tests.protocols import ORDER, shop

MESSAGES = Messages("orders", shop())
FIELDS = fields_of(shop())
COUNT = 4_096


def selected(selector: str, *events: penstock.Event) -> list[int]:
    mask = Selector(selector).mask(body_of(events), messages=FIELDS)
    return [place for place, chosen in enumerate(mask.to_pylist()) if chosen]


def order(**fields: Any) -> penstock.Event:
    return MESSAGES.event("shop.Order", {**ORDER, **fields})


@pytest.mark.spec("P1")
@pytest.mark.parametrize(
    "selector",
    [
        "id = 'A-1'",
        "total BETWEEN 250 AND 250",
        "state = 'PAID'",
        "note IS NULL",
        "at > '2026-05-04T11:59:59Z'",
        "main.sku LIKE 'n%'",
        "lines[].sku = 'bolt'",
        "lines[1].price < 0.6",
        "tags[] = 'rush'",
        "tags[0] = 'red'",
        "serial = 9007199254740993",
        "labels.floor = 2",
        "labels[].key = 'floor'",
        "card = '4711' AND voucher IS NULL",
    ],
)
def test_a_field_is_read_by_its_name(selector: str) -> None:
    partial = MESSAGES.event("shop.Order", {"note": "none of it", "voucher": {"sku": "x"}})

    assert selected(selector, partial, order(), partial) == [1]


@pytest.mark.spec("P1")
def test_a_field_that_is_not_set_has_the_default_of_its_type() -> None:
    empty = MESSAGES.event("shop.Order", {})

    assert selected("total = 0 AND id = '' AND state = 'NEW'", empty) == [0]
    assert selected("at IS NULL AND card IS NULL AND main.sku IS NULL", empty) == [0]


@pytest.mark.spec("P2")
def test_fields_without_a_message_of_a_known_type_are_unknown() -> None:
    data = descriptors_of(shop()).encoded("shop.Order", ORDER)
    strange = penstock.Event(data, headers={TYPE_HEADER: "shop.Nothing"})
    plain = penstock.Event(data)
    broken = penstock.Event(b"\xff\xff", headers={TYPE_HEADER: "shop.Order"})

    for selector in ("total = 250", "total <> 250", "NOT (total = 250)"):
        assert selected(selector, strange, plain, broken) == []
    assert selected("total IS NULL", strange, plain, broken) == [0, 1, 2]
    assert selected("total = 250", broken, order(), broken, strange, order(), broken) == [1, 4]


@pytest.mark.slow
@pytest.mark.spec("P2")
@pytest.mark.parametrize("count", [1, 2, 16, 17, 33, 300])
@pytest.mark.parametrize(
    "data", [b"\xff\xff", b"\x0a" + b"\xff" * 9 + b"\x01"], ids=["text", "length"]
)
def test_broken_messages_do_not_affect_others(count: int, data: bytes) -> None:
    broken = penstock.Event(data, headers={TYPE_HEADER: "shop.Order"})
    places = {0, count // 2, count // 2 + 1, count - 1}
    events = [broken if place in places else order() for place in range(count)]

    assert selected("total = 250", *events) == [n for n in range(count) if n not in places]
    assert selected("total IS NULL", *events) == sorted(places & set(range(count)))
    assert selected("total IS NULL", *[broken] * count) == list(range(count))


@pytest.mark.slow
@pytest.mark.spec("P1")
def test_a_type_with_millions_of_fields_is_not_read_as_columns() -> None:
    file = FileDescriptorProto(name="doubling.proto", package="doubling", syntax="proto3")
    for level in range(24):
        message = file.message_type.add(name=f"Level{level}")
        for number in (1, 2):
            message.field.add(
                name=f"part{number}",
                number=number,
                type=FieldDescriptorProto.TYPE_MESSAGE,
                label=FieldDescriptorProto.LABEL_OPTIONAL,
                type_name=f".doubling.Level{level + 1}",
            )
    file.message_type.add(name="Level24")
    descriptors = FileDescriptorSet(file=[file]).SerializeToString()
    events = [
        penstock.Event(headers={TYPE_HEADER: f"doubling.Level{level}"}, properties={"part1": 1})
        for level in (0, 20)
    ]

    mask = Selector("part1 IS NULL").mask(body_of(events), messages=fields_of(descriptors))

    assert mask.to_pylist() == [False, True]
    Messages("orders", descriptors).seen_in(pa.schema([]))


@pytest.mark.slow
@pytest.mark.spec("P2")
@pytest.mark.parametrize(("broken", "rounds_max"), [(1, 50), (COUNT, COUNT * 17 // 16 + 20)])
def test_broken_messages_do_not_hold_up_the_others(broken: int, rounds_max: int) -> None:
    """Decode as many messages as fit into one publish.

    The realm serves nothing else meanwhile. Each round of decoding costs more than the messages in
    it, so few messages are decoded one by one.
    """
    events = [penstock.Event(b"\xff\xff", headers={TYPE_HEADER: "shop.Order"})] * broken
    events += [order()] * (COUNT - broken)

    rounds = calls_during(lambda: selected("total = 250", *events), "table")

    assert 0 < rounds <= rounds_max
    assert calls_during(lambda: selected("total = 250", *[order()] * COUNT), "table") == 1


def test_messages_of_several_types_and_properties_stand_side_by_side() -> None:
    line = MESSAGES.event("shop.Line", {"sku": "nut", "count": 7})
    plain = penstock.Event(properties={"sku": "nut", "count": 7, "total": 250})

    assert selected("sku = 'nut'", line, order(), plain) == [0, 2]
    assert selected("total = 250", line, order(), plain) == [1, 2]
    assert selected("count + 1 = 8", line, order(), plain) == [0, 2]


@pytest.mark.spec("P1")
def test_a_field_hides_a_property_of_the_same_name() -> None:
    event = MESSAGES.event("shop.Order", {"total": "1"}, properties={"total": 2, "own": 3})

    assert selected("total = 1", event) == [0]
    assert selected("total = 2", event) == []
    assert selected("own = 3", event) == [0]


def test_a_type_inside_itself_is_present_or_not() -> None:
    tree = MESSAGES.event("shop.Tree", {"name": "root", "branches": [{"name": "leaf"}]})

    assert selected("name = 'root' AND branches IS NOT NULL", tree) == [0]
    assert selected("branches[].name = 'leaf'", tree) == []


def test_whole_numbers_beyond_a_signed_integer_compare_as_doubles() -> None:
    assert selected("serial > 1.8446744073709e19", order(serial=str(2**64 - 1))) == [0]
    assert selected("serial > 1.8446744073709e19", order(serial="5")) == []

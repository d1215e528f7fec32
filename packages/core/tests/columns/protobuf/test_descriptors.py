"""Descriptors: error texts, conversion of messages to JSON and back, and messages as columns."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf import descriptor_pb2, timestamp_pb2

import penstock
from penstock_core.columns.protobuf import (
    Descriptors,
    Messages,
    checked_descriptors,
    descriptor_set,
)
from penstock_core.columns.protobuf.descriptors import (
    COLUMN_LEVELS_MAX,
    DESCRIPTORS_BYTES_MAX,
    DESCRIPTORS_KEPT_BYTES_MAX,
    descriptors_of,
)
from penstock_core.vocabulary.errors import InvalidDescriptor, InvalidEvent, Unavailable
from penstock_core.vocabulary.nesting import NESTING_MAX
from tests.protocols import ORDER, a_chain, shop


@pytest.fixture
def descriptors() -> Descriptors:
    return Descriptors(shop())


def test_types_have_full_names(descriptors: Descriptors) -> None:
    assert descriptors.types == (
        "google.protobuf.Timestamp",
        "shop.Line",
        "shop.Order",
        "shop.Tree",
    )
    assert "shop.Order" in descriptors
    assert "Order" not in descriptors


@pytest.mark.spec("P3")
def test_a_message_round_trips_through_json(descriptors: Descriptors) -> None:
    data = descriptors.encoded("shop.Order", ORDER)

    assert descriptors.decoded("shop.Order", data) == ORDER
    assert descriptors.encoded("shop.Order", b'{"id": "A-1"}') == b"\x0a\x03A-1"


@pytest.mark.spec("P3")
@pytest.mark.parametrize(
    ("kind", "value", "complaint"),
    [
        ("shop.Nothing", {}, "unknown message type 'shop.Nothing'.*shop.Order"),
        ("shop.Order", {"idd": "x"}, 'not a shop.Order: .*"idd"'),
        ("shop.Order", {"total": "many"}, "not a shop.Order: .*total"),
        ("shop.Order", "{", "not a shop.Order: "),
        ("shop.Order", 5, "int is not a shop.Order; pass a dictionary, JSON or a message"),
        ("shop.Order", timestamp_pb2.Timestamp(), "a google.protobuf.Timestamp message is no"),
    ],
)
def test_what_is_no_such_message_is_refused(
    descriptors: Descriptors, kind: str, value: object, complaint: str
) -> None:
    with pytest.raises(InvalidEvent, match=complaint):
        descriptors.encoded(kind, value)


def test_data_that_is_not_a_message_is_refused(descriptors: Descriptors) -> None:
    with pytest.raises(InvalidEvent, match=r"the data is not a shop\.Order"):
        descriptors.decoded("shop.Order", b"\xff\xff")
    with pytest.raises(InvalidEvent, match=r"not a shop\.Order"):
        descriptors.table("shop.Order", pa.array([b"\xff\xff"]))


@pytest.mark.slow
@pytest.mark.parametrize(
    "length", [b"\xff" * 9 + b"\x01", b"\xff" * 8 + b"\x7f", b"\x80" * 9 + b"\x01"]
)
def test_a_length_beyond_all_memory_is_refused_like_other_broken_data(
    descriptors: Descriptors, length: bytes
) -> None:
    """The decoder of columns panics there, which no ``except Exception`` would catch."""
    encoded = descriptors.encoded("shop.Order", ORDER)
    tag = encoded[:1]  # of a field that has a length

    with pytest.raises(InvalidEvent, match=r"not a shop\.Order"):
        descriptors.table("shop.Order", pa.array([encoded, tag + length]))

    assert descriptors.table("shop.Order", pa.array([encoded])).num_rows == 1


def test_messages_become_columns(descriptors: Descriptors) -> None:
    data = [descriptors.encoded("shop.Order", value) for value in (ORDER, {})]

    table = descriptors.table("shop.Order", pa.array(data))
    rows = table.to_pylist()

    assert rows[0]["lines"][1] == {"sku": "bolt", "count": 1, "price": 0.5}
    assert (rows[0]["state"], rows[1]["state"]) == ("PAID", "NEW")
    assert (rows[1]["id"], rows[1]["total"]) == ("", 0)
    assert [rows[1][name] for name in ("note", "at", "main", "card")] == [None] * 4
    assert table.schema.field("at").type == pa.timestamp("us", "UTC")


# --- refused when they are set (SEM P4) ---------------------------------------------------


def a_file(name: str, *imports: str, **more: Any) -> descriptor_pb2.FileDescriptorProto:
    return descriptor_pb2.FileDescriptorProto(name=name, dependency=imports, **more)


def a_set(*files: descriptor_pb2.FileDescriptorProto) -> bytes:
    return bytes(descriptor_pb2.FileDescriptorSet(file=files).SerializeToString())


@pytest.mark.spec("P4")
@pytest.mark.parametrize(
    ("descriptors", "complaint"),
    [
        (b"message Order {}", "not a FileDescriptorSet .*protoc --include_imports"),
        (a_set(a_file("empty.proto")), "define no message type"),
        (
            a_set(a_file("shop.proto", "lines.proto")),
            r"shop\.proto imports lines\.proto, but the set does not contain it",
        ),
        (
            a_set(a_file("a.proto", "b.proto"), a_file("b.proto", "a.proto")),
            r"the imports form a circle: a\.proto -> b\.proto -> a\.proto",
        ),
        (
            a_set(
                a_file(
                    "shop.proto",
                    message_type=[
                        {
                            "name": "Order",
                            "field": [
                                {"name": "of", "number": 1, "type": 11, "type_name": ".None"}
                            ],
                        }
                    ],
                )
            ),
            r"descriptor file 'shop\.proto': ",
        ),
        (b"\x0a" * (DESCRIPTORS_BYTES_MAX + 1), "a channel accepts at most 983,040"),
    ],
    ids=["text", "no types", "import missing", "import cycle", "unknown type", "too large"],
)
def test_bad_descriptors_are_refused_with_the_reason(descriptors: bytes, complaint: str) -> None:
    with pytest.raises(InvalidDescriptor, match=complaint):
        checked_descriptors(descriptors)


@pytest.mark.spec("P4")
def test_types_inside_one_another_on_too_many_levels_are_refused() -> None:
    checked_descriptors(a_chain(NESTING_MAX))

    for count in (NESTING_MAX + 1, 9_000):
        with pytest.raises(InvalidDescriptor, match=f"more than {NESTING_MAX} levels"):
            checked_descriptors(a_chain(count))


@pytest.mark.parametrize("closed", [True, False])
def test_types_that_nest_too_deep_never_reach_the_decoder_of_columns(closed: bool) -> None:
    """The decoder recurses in native code: 9,000 levels would end the process."""
    serialized = a_chain(9_000, closed=closed)
    descriptors = Descriptors(serialized)

    with pytest.raises(InvalidEvent, match="too many for columns; decode its messages one by one"):
        descriptors.table("M0", pa.array([b""]))
    with pytest.raises(InvalidEvent, match="M0 has messages nested too deep"):
        descriptors.decoded("M0", b"")
    seen = Messages("c", serialized).seen_in(pa.schema([]))
    assert seen.field("properties").type.num_fields == (0 if closed else COLUMN_LEVELS_MAX - 1)


def test_a_map_whose_value_has_another_name_is_refused_cleanly() -> None:
    inner = [{"name": "key", "number": 1, "type": 9, "label": 1}]
    inner.append({"name": "vblue", "number": 2, "type": 5, "label": 1})
    entry = {"name": "E", "options": {"map_entry": True}, "field": inner}
    field = {"name": "m", "number": 1, "type": 11, "label": 3, "type_name": ".M.E"}
    kind: Any = {"name": "M", "field": [field], "nested_type": [entry]}

    with contextlib.suppress(InvalidDescriptor):  # a newer parser may refuse it
        checked_descriptors(a_set(a_file("map.proto", message_type=[kind])))


@pytest.mark.spec("P4")
def test_imports_of_imports_on_too_many_levels_are_refused() -> None:
    files = [a_file(f"{index}.proto", f"{index + 1}.proto") for index in range(5_000)]
    files.append(a_file("5000.proto", message_type=[{"name": "M"}]))

    with pytest.raises(InvalidDescriptor, match="imports files that import others on more than"):
        checked_descriptors(a_set(*files))


@pytest.mark.spec("P4")
def test_a_realm_refuses_types_that_nest_too_deep_and_survives() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        orders = session.channels.create("orders", descriptors=shop())
        with pytest.raises(InvalidDescriptor, match="more than 100 levels"):
            session.channels.create("deep", descriptors=a_chain(9_000))
        with pytest.raises(InvalidDescriptor, match="more than 100 levels"):
            orders.edit(descriptors=a_chain(9_000))

        assert orders.read(selector="total > 5").num_rows == 0


def test_no_descriptors_are_right() -> None:
    checked_descriptors(b"")


def test_well_known_imports_need_not_be_in_the_set() -> None:
    files = descriptor_pb2.FileDescriptorSet.FromString(shop()).file

    assert "shop.Order" in Descriptors(a_set(files[0]))


def test_without_the_extra_it_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ptars", None)

    with pytest.raises(
        Unavailable,
        match=r'descriptors need ptars, which is not installed.*"penstock-realm\[protobuf\]"',
    ):
        Descriptors(shop())


# --- made from generated code -------------------------------------------------------------


def test_a_set_is_made_of_a_module_or_a_message_class() -> None:
    for source in (timestamp_pb2, timestamp_pb2.Timestamp, [timestamp_pb2, shop()]):
        assert "google.protobuf.Timestamp" in Descriptors(descriptor_set(source))

    assert descriptor_set(shop()) == shop()
    with pytest.raises(TypeError, match="int is not a descriptor set"):
        descriptor_set(5)


def test_parsed_descriptors_are_kept_up_to_their_bytes() -> None:
    def padded(number: int) -> bytes:
        files = descriptor_pb2.FileDescriptorSet.FromString(shop())
        files.file[-1].source_code_info.location.add(leading_comments=f"{number}" + "x" * 900_000)
        return bytes(files.SerializeToString())

    for number in range(6):
        assert "shop.Order" in descriptors_of(padded(number))

    assert len(descriptors_of) <= DESCRIPTORS_KEPT_BYTES_MAX // 900_000

"""Message types of a small shop, as ``protoc`` would compile them.

package shop;
enum State { NEW = 0; PAID = 1; }
message Line { string sku = 1; int32 count = 2; optional double price = 3; }
message Order {
  string id = 1; int64 total = 2; repeated Line lines = 3; State state = 4;
  optional string note = 5; google.protobuf.Timestamp at = 6; repeated string tags = 7;
  Line main = 8; uint64 serial = 9; map<string, int32> labels = 10;
  oneof paid_by { string card = 11; Line voucher = 12; }
}
message Tree { string name = 1; repeated Tree branches = 2; }
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, timestamp_pb2
from google.protobuf.descriptor_pb2 import DescriptorProto, FieldDescriptorProto

_F = FieldDescriptorProto


def _field(name: str, number: int, kind: int, of: str = "", **more: object) -> Any:
    return _F(
        name=name, number=number, type=kind, type_name=of or None, label=_F.LABEL_OPTIONAL, **more
    )


def _repeated(name: str, number: int, kind: int, of: str = "") -> Any:
    return _F(name=name, number=number, type=kind, type_name=of or None, label=_F.LABEL_REPEATED)


def shop() -> bytes:
    """Return these types as a set of descriptors, including the imported file."""
    line = DescriptorProto(
        name="Line",
        field=[
            _field("sku", 1, _F.TYPE_STRING),
            _field("count", 2, _F.TYPE_INT32),
            _field("price", 3, _F.TYPE_DOUBLE, oneof_index=0, proto3_optional=True),
        ],
        oneof_decl=[{"name": "_price"}],
    )
    label = DescriptorProto(
        name="LabelsEntry",
        field=[_field("key", 1, _F.TYPE_STRING), _field("value", 2, _F.TYPE_INT32)],
        options={"map_entry": True},
    )
    order = DescriptorProto(
        name="Order",
        field=[
            _field("id", 1, _F.TYPE_STRING),
            _field("total", 2, _F.TYPE_INT64),
            _repeated("lines", 3, _F.TYPE_MESSAGE, of=".shop.Line"),
            _field("state", 4, _F.TYPE_ENUM, of=".shop.State"),
            _field("note", 5, _F.TYPE_STRING, oneof_index=1, proto3_optional=True),
            _field("at", 6, _F.TYPE_MESSAGE, of=".google.protobuf.Timestamp"),
            _repeated("tags", 7, _F.TYPE_STRING),
            _field("main", 8, _F.TYPE_MESSAGE, of=".shop.Line"),
            _field("serial", 9, _F.TYPE_UINT64),
            _repeated("labels", 10, _F.TYPE_MESSAGE, of=".shop.Order.LabelsEntry"),
            _field("card", 11, _F.TYPE_STRING, oneof_index=0),
            _field("voucher", 12, _F.TYPE_MESSAGE, of=".shop.Line", oneof_index=0),
        ],
        nested_type=[label],
        oneof_decl=[{"name": "paid_by"}, {"name": "_note"}],
    )
    tree = DescriptorProto(
        name="Tree",
        field=[
            _field("name", 1, _F.TYPE_STRING),
            _repeated("branches", 2, _F.TYPE_MESSAGE, of=".shop.Tree"),
        ],
    )
    state = descriptor_pb2.EnumDescriptorProto(
        name="State", value=[{"name": "NEW", "number": 0}, {"name": "PAID", "number": 1}]
    )
    file = descriptor_pb2.FileDescriptorProto(
        name="shop.proto",
        package="shop",
        syntax="proto3",
        dependency=["google/protobuf/timestamp.proto"],
        message_type=[line, order, tree],
        enum_type=[state],
    )
    imported = descriptor_pb2.FileDescriptorProto()
    timestamp_pb2.DESCRIPTOR.CopyToProto(imported)
    # The importing file is first: a set need not be in the order of imports.
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file, imported]).SerializeToString())


ORDER = {
    "id": "A-1",
    "total": "250",
    "lines": [{"sku": "nut", "count": 3}, {"sku": "bolt", "count": 1, "price": 0.5}],
    "state": "PAID",
    "at": "2026-05-04T12:00:00Z",
    "tags": ["red", "rush"],
    "main": {"sku": "nut", "count": 3},
    "serial": "9007199254740993",
    "labels": {"floor": 2},
    "card": "4711",
}
"""An order in the JSON mapping: 64-bit integers are strings."""


def a_chain(count: int, *, closed: bool = False) -> bytes:
    """Return message types of which each has a field of the next type. With ``closed`` the last has
    a field of the first."""
    field = {"name": "next", "number": 1, "type": 11, "label": 1}
    types: list[Any] = [
        {"name": f"M{index}", "field": [{**field, "type_name": f".M{(index + 1) % count}"}]}
        for index in range(count)
    ]
    if not closed:
        types[-1] = {"name": f"M{count - 1}"}
    file = descriptor_pb2.FileDescriptorProto(name="chain.proto", message_type=types)
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())

"""Feeds each decoder of external input with a value nested to a given depth.

Run as a program, it feeds all decoders and prints the outcome of each. Native code that recurses
without a bound would end the process; then the last line names it."""

from __future__ import annotations

import base64
import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from google.protobuf import descriptor_pb2

from penstock.client.copies.backup_sinks import manifest_from as backup_manifest_from
from penstock.client.publishing.replying import reply_headers
from penstock_amqp import message_header
from penstock_amqp.wire import types
from penstock_core.columns.documents import event_of
from penstock_core.columns.events.body import body_of, body_of_columns
from penstock_core.columns.events.check import check_body
from penstock_core.columns.files.exports import manifest_from
from penstock_core.columns.protobuf import Descriptors, checked_descriptors
from penstock_core.columns.schema import overflow
from penstock_core.columns.schema.ipc import schema_from, table_from_stream
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import PenstockError
from penstock_core.vocabulary.nesting import NESTING_MAX
from penstock_core.wire.native.messages import decode_from_client, decode_from_server
from penstock_core.wire.positions import positions_in
from penstock_mqtt.json_payloads import FEW, JsonColumns
from penstock_mqtt.residues import NO_RESIDUE, Residue, residue_of, residue_of_amqp
from penstock_mqtt.wire.reading import packet_of
from penstock_server.frontends.http import event_documents, joining, publishing, states
from penstock_server.runtime.access import tokens
from penstock_server.settings.loading import load
from penstock_tools.topology.reading import parse

FEW_LEVELS: Final = 2
"""A depth that is refused only by decoders that allow no nested value."""
LEVELS: Final = (FEW_LEVELS, NESTING_MAX + 1, 100_000)

Maker = Callable[[int], Any]
Decoder = Callable[[Any], object]


def arrays(levels: int) -> bytes:
    return b"[" * levels + b"1" + b"]" * levels


def objects(levels: int) -> bytes:
    return b'{"a":' * levels + b"1" + b"}" * levels


def packed(levels: int) -> bytes:
    """Return arrays of msgpack, nested so deep, with one element each."""
    return b"\x91" * levels + b"\x01"


def in_a_field(levels: int, fields: bytes = b"") -> bytes:
    """Return an object with ``fields`` and a nested, unknown field, which decoders skip."""
    return b"{" + fields + b'"zz":' + arrays(levels) + b"}"


def json_document(data: bytes) -> publishing.PublishDocument:
    """Read a publish over HTTP without a trace context."""
    return publishing.json_document(data, None, {})


def header(levels: int) -> str:
    """Return a header of MQTT or AMQP with a nested content type."""
    return in_a_field(levels, b'"content_type":"a",').decode()


def described(levels: int) -> bytes:
    """Return described values of AMQP, each inside another."""
    return b"\x00\x43" * levels + b"\x43"


def amqp_lists(levels: int) -> bytes:
    value = b"\x45"
    for _ in range(levels):
        value = b"\xd0" + (len(value) + 4).to_bytes(4) + (1).to_bytes(4) + value
        if len(value) > 1 << 20:
            break
    return value


def a_property(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def message_types(levels: int) -> bytes:
    """Return message types of Protocol Buffers, each with a field of the next; at most as many as
    are allowed."""
    file = descriptor_pb2.FileDescriptorProto(name="deep.proto", syntax="proto3")
    for level in range(min(levels, 9_000)):
        message = file.message_type.add(name=f"M{level}")
        if level + 1 < min(levels, 9_000):
            message.field.add(name="f", number=1, type=11, label=1, type_name=f".M{level + 1}")
    return bytes(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def protobuf_message(levels: int) -> bytes:
    """Return the bytes of a message whose type contains itself."""
    value = b""
    for _ in range(min(levels, 10_000)):
        size, length = len(value), b""
        while size >= 0x80:
            length += bytes((size & 0x7F | 0x80,))
            size >>= 7
        value = b"\x0a" + length + bytes((size,)) + value
    return value


def tree() -> Descriptors:
    file = descriptor_pb2.FileDescriptorProto(name="tree.proto", syntax="proto3")
    node = file.message_type.add(name="Tree")
    node.field.add(name="inner", number=1, type=11, label=1, type_name=".Tree")
    return Descriptors(descriptor_pb2.FileDescriptorSet(file=[file]).SerializeToString())


def arrow_schema(levels: int) -> bytes:
    kind = pa.int8()
    for _ in range(min(levels, 1_000)):  # Arrow itself writes no deeper ones
        kind = pa.list_(kind)
    return bytes(pa.schema([("data", kind)]).serialize())


def json_payload(data: bytes) -> object:
    (row,) = JsonColumns(()).rows([data], ())
    if isinstance(row, PenstockError):
        raise row
    return row


class Absent(Exception):
    """A value that could not be read was treated as absent."""


def unless_absent(decode: Decoder, absent: Callable[[Any], object]) -> Decoder:
    """Decode, and raise `Absent` if the result is the one for an absent value."""

    def decode_all(data: Any) -> object:
        result = decode(data)
        if result == absent(data):
            raise Absent
        return result

    return decode_all


def json_payloads(data: bytes) -> object:
    return JsonColumns(()).columns([data] * FEW, {}, ())


def token(header: bytes, claims: bytes) -> object:
    parts = (header, claims, b"sig")
    return tokens.key_id_of(
        ".".join(base64.urlsafe_b64encode(part).rstrip(b"=").decode() for part in parts)
    )


def publish_properties(value: Any) -> object:
    return body_of_columns([b""], None, [{"p": value}])


def published_overflow(cell: bytes) -> object:
    batch = body_of_columns([b""], None, [{}])
    check_body(batch.append_column("more", pa.array([cell], pa.binary())))
    return batch


def tagged(levels: int) -> bytes:
    """Return a cell of the overflow column with nested lists."""
    node = b"\x92\xa1a\x91" * levels + b"\xc0"
    return b"\x81\xa1p" + node


def toml_arrays(levels: int) -> str:
    return "a = " + arrays(levels).decode()


def toml_tables(levels: int) -> str:
    return "[" + ".".join("a" * min(levels, 2_000)) + "]"


def user_properties(levels: int) -> bytes:
    """Return a PUBLISH with this many user properties. MQTT has no nesting, only repetition."""
    pairs = b"\x26\x00\x01n\x00\x01v" * (levels * 10)
    size, length = len(pairs), b""
    while size >= 0x80:
        length += bytes((size & 0x7F | 0x80,))
        size >>= 7
    return b"\x00\x01a" + length + bytes((size,)) + pairs


DECODERS: Final[Mapping[str, tuple[Maker, Decoder]]] = {
    "MQTT: a JSON payload": (lambda n: b'{"a":' + arrays(n) + b"}", json_payload),
    "MQTT: a JSON payload of objects": (objects, json_payload),
    "MQTT: a JSON payload that ends too early": (lambda n: b'{"a":' + b"[" * n, json_payload),
    "MQTT: JSON payloads that come together": (
        objects,
        unless_absent(json_payloads, lambda _: None),
    ),
    "MQTT: JSON payloads together, arrays": (
        lambda n: b'{"a":' + arrays(n) + b"}",
        unless_absent(json_payloads, lambda _: None),
    ),
    "MQTT: payloads together that end too early": (
        lambda n: b'{"a":' + b"[" * n,
        unless_absent(json_payloads, lambda _: None),
    ),
    "MQTT: the header mqtt": (header, unless_absent(residue_of, lambda _: Residue())),
    "MQTT: the header amqp": (header, unless_absent(residue_of_amqp, lambda _: NO_RESIDUE)),
    "MQTT: user properties": (user_properties, lambda data: packet_of(0x30, data, 5)),
    "AMQP: the header amqp": (
        header,
        unless_absent(message_header.decode_extras, lambda _: message_header.PLAIN),
    ),
    "AMQP: the header mqtt": (
        header,
        unless_absent(message_header.decode_mqtt, lambda _: message_header.PLAIN),
    ),
    "AMQP: described values": (described, lambda data: types.read(data)),
    "AMQP: described values that are skipped": (described, lambda data: types.skip(data, 0)),
    "AMQP: lists": (amqp_lists, lambda data: types.read(data)),
    "native: a frame of a client": (packed, lambda data: decode_from_client(memoryview(data))),
    "native: a frame of a server": (packed, lambda data: decode_from_server(memoryview(data))),
    "HTTP: an event": (in_a_field, json_document),
    "HTTP: events": (lambda n: b'{"events":' + arrays(n) + b"}", json_document),
    "HTTP: properties of an event": (
        lambda n: b'{"data":"","properties":{"p":' + arrays(n) + b"}}",
        json_document,
    ),
    "HTTP: a line of NDJSON": (in_a_field, lambda data: body_of([event_of(data)])),
    "HTTP: the key of a state": (
        lambda n: arrays(n).decode(),
        unless_absent(states.inferred, lambda text: text),
    ),
    "HTTP: the id of a join": (
        lambda n: base64.urlsafe_b64encode(arrays(n)).decode(),
        unless_absent(joining.join_of, lambda _: None),
    ),
    "HTTP: data shown as JSON": (
        arrays,
        unless_absent(event_documents.json_in, lambda _: None),
    ),
    "HTTP: an Arrow stream": (arrow_schema, lambda data: table_from_stream(data, rows_max=10)),
    "native: an Arrow schema": (arrow_schema, schema_from),
    "a selector in parentheses": (lambda n: "(" * n + "a = 1" + ")" * n, Selector),
    "a selector with NOT": (lambda n: "NOT " * n + "a = 1", Selector),
    "a selector with signs": (lambda n: "a = " + "- " * n + "1", Selector),
    "a selector of a path": (lambda n: "a" + ".a" * n + " = 1", Selector),
    "a selector of a path of elements": (lambda n: "a" + "[0]" * n + " = 1", Selector),
    "a selector of operators": (lambda n: "a = " + "1 + " * n + "1", Selector),
    "properties": (a_property, publish_properties),
    "properties in overflow": (tagged, published_overflow),
    "stored properties in overflow": (tagged, overflow.decoded),
    "descriptors of Protocol Buffers": (message_types, checked_descriptors),
    "a message of Protocol Buffers": (
        protobuf_message,
        lambda data: tree().decoded("Tree", data),
    ),
    "JSON of a message of Protocol Buffers": (
        lambda n: b'{"inner":' * n + b"{}" + b"}" * n,
        lambda data: tree().encoded("Tree", data),
    ),
    "settings": (toml_arrays, load),
    "a topology": (toml_arrays, parse),
    "a topology of tables": (toml_tables, parse),
    "the manifest of an export": (lambda n: in_a_field(n), manifest_from),
    "the manifest of a backup": (
        lambda n: in_a_field(n),
        lambda data: backup_manifest_from(data, Path()),
    ),
    "the header of a token": (
        lambda n: in_a_field(n, b'"kid":"k",'),
        lambda data: token(data, b"{}"),
    ),
    "the claims of a token": (
        lambda n: in_a_field(n),
        lambda data: token(b'{"kid":"k"}', data),
    ),
    "the keys for tokens": (lambda n: b'{"keys":' + arrays(n) + b"}", tokens.keys_in),
    "a request that a client answers": (
        lambda n: in_a_field(n, b'"body":"text",').decode(),
        unless_absent(lambda text: reply_headers({"amqp": text}, b"", None), lambda _: {}),
    ),
    "an offset of Spark": (
        lambda n: in_a_field(n, b'"c":{"a":{"n":1}},').decode(),
        unless_absent(positions_in, lambda _: {}),
    ),
}
"""The maker of the nested value, and the decoder, by what is decoded. Session records of MQTT are
read from a channel (`packages/mqtt/tests/test_internal_stores.py`)."""


def outcome(make: Maker, decode: Decoder, levels: int) -> str:
    value = make(levels)
    try:
        decode(value)
    except PenstockError:
        return "refused"
    except Absent:
        return "absent"
    except BaseException as error:  # noqa: BLE001  it is what the test looks for
        return f"{type(error).__name__} came through"
    return "taken"


def tell(said: object) -> None:
    sys.stdout.write(json.dumps(said) + "\n")
    sys.stdout.flush()


def main() -> None:
    for levels in LEVELS:
        for name, (make, decode) in DECODERS.items():
            tell([name, levels])
            tell(outcome(make, decode, levels))


if __name__ == "__main__":
    main()

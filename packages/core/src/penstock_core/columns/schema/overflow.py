"""The ``more`` column: properties that columns cannot hold, as msgpack with exact types.

A cell is a msgpack map from property name to node. A node is nil, or an array of a type code and a
payload: ``?`` bool, ``b h i l`` int8..64, ``f d`` float32/64, ``s`` string, ``y`` bytes, ``t``
aware and ``n`` naive timestamp in microseconds since 1970, ``a`` list of nodes, ``m`` map from key
to node.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
import numpy as np

from penstock_core.columns.schema.layout import DICTIONARY, check_stored_name
from penstock_core.columns.schema.shapes import LEAVES, NAIVE, NULL
from penstock_core.columns.schema.shapes import UTC as AWARE
from penstock_core.columns.schema.values import leaf_of
from penstock_core.vocabulary.errors import InvalidEvent
from penstock_core.vocabulary.nesting import NESTING_MAX

_CODES: Final = {
    "bool": "?",
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "l",
    "float": "f",
    "double": "d",
    "string": "s",
    "binary": "y",
    AWARE: "t",
    NAIVE: "n",
}
assert {*_CODES, NULL} == set(LEAVES), "each single type has a code"

_NAIVE_EPOCH: Final = datetime(1970, 1, 1)  # noqa: DTZ001 - a timestamp without a zone stays so
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND: Final = timedelta(microseconds=1)

Node = list[Any] | None

_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(dict[str, Node])


def encoded(properties: dict[str, Any]) -> bytes:
    """Return the encoded cell of the column ``more`` for ``properties``, whose values must be
    supported (:mod:`.values`)."""
    return _encoder.encode({name: _node(value) for name, value in properties.items()})


def _node(value: Any) -> Node:
    """Return the node that encodes a value."""
    if value is None:
        return None
    if isinstance(value, dict):
        return ["m", {key: _node(inner) for key, inner in value.items()}]
    if isinstance(value, list):
        return ["a", [_node(inner) for inner in value]]
    leaf, plain = leaf_of(value)
    if plain is None:
        return None
    if leaf == AWARE:
        plain = (plain - _EPOCH) // _MICROSECOND
    elif leaf == NAIVE:
        plain = (plain - _NAIVE_EPOCH) // _MICROSECOND
    return [_CODES[leaf], plain]


def decoded(cell: bytes) -> dict[str, Any]:
    """Return the properties in a cell. Raises :class:`InvalidEvent` for bytes that are not a cell.

    The result may contain the realm's own dictionary, which a channel without free columns stores
    in ``more``.
    """
    try:
        nodes = _decoder.decode(cell)
        # The dictionary is removed first, because _map() refuses the reserved name.
        stamped = {DICTIONARY: _value(nodes.pop(DICTIONARY))} if DICTIONARY in nodes else {}
        return _map(nodes) | stamped
    except (msgspec.MsgspecError, LookupError, TypeError, ValueError, OverflowError) as error:
        raise InvalidEvent(f"column 'more' does not hold tagged msgpack: {error}") from error
    except RecursionError:
        raise InvalidEvent("column 'more' is nested too deep") from None


def check_nesting(cell: bytes) -> None:
    """Raise :class:`InvalidEvent` if a checked cell has a property of more than `NESTING_MAX`
    levels."""
    # Each level has one of these codes, so a low count needs no decoding.
    if cell.count(b"a") + cell.count(b"m") <= NESTING_MAX:
        return
    for name, node in _decoder.decode(cell).items():
        if is_too_deep(node):
            raise InvalidEvent(too_deep(name))


def is_too_deep(node: Node) -> bool:
    """Whether a value has more than `NESTING_MAX` nested lists and maps."""
    level_nodes = [node]
    for _ in range(NESTING_MAX + 1):
        nested = [node for node in level_nodes if node is not None and node[0] in ("a", "m")]
        if not nested:
            return False
        level_nodes = [
            inner
            for code, payload in nested
            for inner in (payload if code == "a" else payload.values())
        ]
    return True


def too_deep(name: str) -> str:
    """Return the error text for a property of more than `NESTING_MAX` levels."""
    return (
        f"property {name!r} is nested too deep; at most {NESTING_MAX} levels of lists and "
        "dictionaries are allowed"
    )


def _value(node: Node) -> Any:
    """Return the value of a node."""
    if node is None:
        return None
    code, payload = node
    return _READERS[code](payload)


def _map(nodes: dict[str, Node]) -> dict[str, Any]:
    for name in nodes:
        check_stored_name(name)
    return {name: _value(node) for name, node in nodes.items()}


def _exactly(kind: type) -> Callable[[Any], Any]:
    """Return a function that checks a value of exactly this type, not of a subclass."""

    def checked(payload: Any) -> Any:
        if type(payload) is not kind:
            raise TypeError(f"expected {kind.__name__}, got {type(payload).__name__}")
        return payload

    return checked


def _integer(bits: int) -> Callable[[Any], Any]:
    """Return a function that checks an integer of this width."""
    bound = 1 << (bits - 1)

    def checked(payload: Any) -> Any:
        # For isinstance(), a bool is also an int.
        if type(payload) is not int or not -bound <= payload < bound:
            raise ValueError(f"{payload!r} does not fit int{bits}")
        return payload

    return checked


_READERS: Final[dict[str, Callable[[Any], Any]]] = {
    "?": _exactly(bool),
    "b": _integer(8),
    "h": _integer(16),
    "i": _integer(32),
    "l": _integer(64),
    "f": _exactly(float),
    "d": _exactly(float),
    "s": _exactly(str),
    "y": _exactly(bytes),
    "t": lambda payload: _EPOCH + timedelta(microseconds=payload),
    "n": lambda payload: _NAIVE_EPOCH + timedelta(microseconds=payload),
    "a": lambda payload: [_value(node) for node in _exactly(list)(payload)],
    "m": lambda payload: _map(_exactly(dict)(payload)),
}


def extended(cell: bytes | None, properties: dict[str, Any]) -> bytes | None:
    """Return a cell with ``properties`` added. Names already in the cell keep their values."""
    if not properties:
        return cell
    nodes = {name: _node(value) for name, value in properties.items()}
    return _encoder.encode({**nodes, **_decoder.decode(cell)} if cell else nodes)


def typed(cell: bytes) -> dict[str, Any]:
    """Return the properties of a checked cell, like :func:`decoded`, but keep the width of numbers.

    Numbers narrower than 64 bits are NumPy scalars, so columns built from them have the types that
    were published.
    """
    return {name: _typed(node) for name, node in _decoder.decode(cell).items()}


_NARROW: Final[dict[str, type]] = {"b": np.int8, "h": np.int16, "i": np.int32, "f": np.float32}


def _typed(node: Node) -> Any:
    """Return the value of a node, as NumPy scalars for narrow numbers."""
    if node is None:
        return None
    code, payload = node
    if code == "a":
        return [_typed(inner) for inner in payload]
    if code == "m":
        return {key: _typed(inner) for key, inner in payload.items()}
    return _NARROW[code](payload) if code in _NARROW else _READERS[code](payload)


def nodes(cell: bytes) -> dict[str, Node]:
    """Return the properties of a checked cell as encoded nodes."""
    return _decoder.decode(cell)


def of_nodes(properties: dict[str, Node]) -> bytes:
    """Return the cell that holds these nodes."""
    return _encoder.encode(properties)


def without(cell: bytes, name: str) -> bytes | None:
    """Return a cell without the property ``name``; None if the cell would be empty."""
    nodes = _decoder.decode(cell)
    nodes.pop(name, None)
    return _encoder.encode(nodes) if nodes else None

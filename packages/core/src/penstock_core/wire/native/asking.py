"""Checks requests in the client, so that requests that a realm cannot decode are never sent."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from penstock_core.api.requests import Request
from penstock_core.bounds import HEADER_BYTES_MAX
from penstock_core.vocabulary.argument_errors import PYTHON, explain
from penstock_core.vocabulary.errors import InvalidArgument, RemoteProtocolViolation
from penstock_core.wire.native import messages as wire

_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError)
"""Errors of a request that cannot be encoded or decoded. Encoding raises one of the last three,
for text with half a surrogate pair, for example."""
_ALLOWED = {str: "text in Unicode", bool: "True or False", int: "an integer of at most 64 bits"}
"""Descriptions of the values that a field of a type may have."""
_SHOWN = 80
"""Maximum number of characters of a value that an error message quotes."""


def check_request(message: Request[Any]) -> None:
    """Raise ``InvalidArgument``, which names the field and its allowed values, if ``message`` is
    invalid.

    A realm would treat such a request as a protocol violation and close the connection, with
    everything in progress on it.
    """
    try:
        header = wire.encode(wire.Asked(0, message))
        decoded = wire.decode_from_client(memoryview(header))
    except (RemoteProtocolViolation, *_UNREADABLE) as error:
        raise InvalidArgument(_field_fault(message) or str(error)) from None
    if isinstance(decoded, wire.Unreadable):
        raise InvalidArgument(_field_fault(message) or str(decoded.reason))
    if len(header) > HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"this {type(message).__name__} takes {len(header)} bytes; a request may have at most "
            f"{HEADER_BYTES_MAX} without its events; split it into several requests"
        )


def _field_fault(message: Request[Any]) -> str:
    """Return the error text for the first field that cannot be sent; empty if none is found."""
    kinds = typing.get_type_hints(type(message), include_extras=True)
    for name in message.__struct_fields__:
        value, shown_name = getattr(message, name), wire.name_for_users(name)
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kinds[name])
        except msgspec.ValidationError as error:
            return explain(error, value, kind=kinds[name], whole=shown_name, words=PYTHON)
        except _UNREADABLE as error:
            kind = typing.get_type_hints(type(message))[name]
            if kind in _ALLOWED:
                return f"{shown_name} must be {_ALLOWED[kind]}, not {repr(value)[:_SHOWN]}"
            return f"{shown_name} cannot be sent: {error}"
    return ""

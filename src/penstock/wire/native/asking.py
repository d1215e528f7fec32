"""Requests a client may send: refused before they leave where no realm could read them."""

from __future__ import annotations

import typing
from typing import Any

import msgspec

from penstock.api.requests import Request
from penstock.core.bounds import HEADER_BYTES_MAX
from penstock.core.vocabulary.argument_errors import PYTHON, explain
from penstock.core.vocabulary.errors import InvalidArgument, RemoteProtocolViolation
from penstock.wire.native import messages as wire

_UNREADABLE = (msgspec.MsgspecError, TypeError, ValueError, OverflowError)
"""What cannot be encoded raises one of the last three, such as text with half a surrogate."""
_WANTED = {str: "text in Unicode", bool: "True or False", int: "an integer of at most 64 bits"}
_SHOWN = 80
"""Most characters of a value in a message."""


def check_request(message: Request[Any]) -> None:
    """Raises ``InvalidArgument`` that names the field and what it has to be.

    A realm would take such a request for a broken protocol and end the connection with all
    that is going on in it.
    """
    try:
        header = wire.encode(wire.Asked(0, message))
        read = wire.decode_from_client(memoryview(header))
    except (RemoteProtocolViolation, *_UNREADABLE) as error:
        raise InvalidArgument(_what_is_wrong(message) or str(error)) from None
    if isinstance(read, wire.Unreadable):
        raise InvalidArgument(_what_is_wrong(message) or str(read.reason))
    if len(header) > HEADER_BYTES_MAX:
        raise InvalidArgument(
            f"this {type(message).__name__} takes {len(header)} bytes; a request may have at most "
            f"{HEADER_BYTES_MAX} without its events: ask for less at a time"
        )


def _what_is_wrong(message: Request[Any]) -> str:
    kinds = typing.get_type_hints(type(message), include_extras=True)
    for name in message.__struct_fields__:
        given, said = getattr(message, name), wire.name_for_users(name)
        try:
            msgspec.msgpack.decode(msgspec.msgpack.encode(given), type=kinds[name])
        except msgspec.ValidationError as error:
            return explain(error, given, kind=kinds[name], whole=said, words=PYTHON)
        except _UNREADABLE as error:
            kind = typing.get_type_hints(type(message))[name]
            if kind in _WANTED:
                return f"{said} must be {_WANTED[kind]}, not {repr(given)[:_SHOWN]}"
            return f"{said} cannot be sent: {error}"
    return ""

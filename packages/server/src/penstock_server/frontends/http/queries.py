"""Parses the query parameters of HTTP requests."""

from __future__ import annotations

from typing import Any, Final
from urllib.parse import parse_qsl

import msgspec

from penstock_core.vocabulary.argument_errors import explain
from penstock_core.vocabulary.errors import InvalidArgument

QUERY_BYTES_MAX: Final = 128 << 10
"""Largest size in bytes of a query string."""


def query_of(query_string: bytes, kind: Any) -> Any:
    """Return the query parameters of a request as a value of the type ``kind``.

    Raises ``InvalidArgument``.
    """
    if len(query_string) > QUERY_BYTES_MAX:
        raise InvalidArgument(
            f"the query has {len(query_string)} bytes; at most {QUERY_BYTES_MAX} are allowed"
        )
    try:
        pairs = (
            parse_qsl(
                query_string.decode("ascii"),
                keep_blank_values=True,
                strict_parsing=True,
                errors="strict",
            )
            if query_string
            else []
        )
    except ValueError as error:
        raise InvalidArgument(f"the query cannot be read: {error}") from None
    if len({name for name, _ in pairs}) < len(pairs):
        raise InvalidArgument("the query gives a parameter twice")
    try:
        return msgspec.convert(dict(pairs), kind, strict=False)
    except (msgspec.ValidationError, RecursionError) as error:
        raise InvalidArgument(explain(error, dict(pairs), kind=kind, whole="the query")) from None

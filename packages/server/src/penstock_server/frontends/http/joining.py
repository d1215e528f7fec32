"""Ids of joins in the paths of the API: base64 of the names of source and destination."""

from __future__ import annotations

import base64
import binascii

import msgspec


def join_id(source: str, destination: str) -> str:
    """Return the id of a join, as in ``DELETE joins/{id}``."""
    key = msgspec.json.encode([source, destination])
    return base64.urlsafe_b64encode(key).decode().rstrip("=")


def join_of(text: str) -> tuple[str, str] | None:
    """Return the source and destination in an id; None if it is not the id of a join."""
    try:
        key = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
        return msgspec.json.decode(key, type=tuple[str, str])
    except (binascii.Error, ValueError, msgspec.DecodeError, RecursionError):
        return None

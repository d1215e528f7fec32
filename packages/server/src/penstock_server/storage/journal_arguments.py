"""Checks of the arguments of journal calls, shared by all adapters."""

from __future__ import annotations

from penstock_core.vocabulary.errors import InvalidArgument, Trimmed


def check_room(size: int) -> None:
    """Raise ``InvalidArgument`` for a number of bytes that cannot be reserved."""
    if size < 0:
        raise InvalidArgument(f"cannot reserve {size} bytes; the size has to be 0 or more")


def check_read(first: int, limit: int, *, floor: int) -> None:
    """Raise ``Trimmed`` if block ``first`` is at or below the floor, ``InvalidArgument`` if
    ``limit`` is less than 1."""
    if first <= floor:
        raise Trimmed(f"block {first} was trimmed: the journal starts after {floor}")
    if limit < 1:
        raise InvalidArgument(f"limit is {limit}; read at least 1 block")


def check_trim(through: int, *, tail: int) -> None:
    """Raise ``InvalidArgument`` for blocks that are not stored yet."""
    if through > tail:
        raise InvalidArgument(f"cannot trim through block {through}; the newest is {tail}")

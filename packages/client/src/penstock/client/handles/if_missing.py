"""Implements ``create(..., if_missing=True)``, which returns an existing object with the requested
attributes instead of raising an error, and deletion when the answer of the realm is lost."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any, Final, Protocol, TypeVar

from penstock_core.vocabulary.definitions import Definition, Storage
from penstock_core.vocabulary.errors import (
    ConnectionLost,
    NameAlreadyBound,
    NameDoesNotExist,
    PenstockError,
)
from penstock_core.vocabulary.names import destination_name
from penstock_core.vocabulary.reach import comparable, with_explicit_reach

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TRIES: Final = 3
"""Largest number of rounds of a search and a creation. Other clients may create and delete the
object between the two requests of a round."""


class Creating(Protocol[T_co]):
    """A function that sends a request to create an object. With ``resend`` the request is sent
    again on the next connection if its connection is lost."""

    def __call__(self, *, resend: bool) -> Awaitable[T_co]: ...


async def found_or_created(
    find: Callable[[], Awaitable[T]], create: Callable[[], Awaitable[T]]
) -> tuple[T, bool]:
    """Find an object, or create it if it does not exist. Return it, and whether it existed.

    Raises the errors of ``find`` and ``create``, and ``NameAlreadyBound`` if an object of another
    kind has the name.
    """
    reason = ""
    for _ in range(_TRIES):
        try:
            return await find(), True
        except NameDoesNotExist as error:
            reason = str(error)
        try:
            return await create(), False
        except NameAlreadyBound:
            pass  # another client has just created it, or an object of another kind has the name
    raise NameAlreadyBound(reason)


async def created(
    find: Callable[[], Awaitable[T]],
    create: Creating[T],
    check: Callable[[T], None],
    *,
    if_missing: bool,
) -> T:
    """Create an object and return its description. With ``if_missing``, return the description of
    an existing object that passes ``check``.

    If the connection is lost before the answer arrives, the object may have been created. An
    existing object that passes ``check`` then counts as the new one. Raises the errors of the three
    functions.
    """
    if not if_missing:
        # After a lost connection the outcome is unknown, and the steps below find out.
        with suppress(ConnectionLost):
            return await create(resend=False)
    result, existed = await found_or_created(find, lambda: create(resend=True))
    if existed:
        check(result)
    return result


async def deleted(
    delete: Callable[[], Awaitable[object]], find: Callable[[], Awaitable[object]]
) -> None:
    """Delete an object with the request ``delete``.

    If the connection is lost before the answer arrives, ``find`` tells whether the object still
    exists. The request is not repeated, because the existing object may be a new one of that name.
    Raises the errors of ``delete``, including ``ConnectionLost`` if the outcome is unknown.
    """
    try:
        await delete()
    except ConnectionLost as lost:
        try:
            await find()
        except NameDoesNotExist:
            return
        except PenstockError:
            # The right to delete an object does not imply the right to read its description.
            raise lost from None
        raise


def refuse_differences(description: str, differences: Iterable[tuple[str, object, object]]) -> None:
    """Raise ``NameAlreadyBound`` if an existing object differs from the requested one.

    ``differences`` has the name, the existing value and the requested value of each attribute that
    differs. ``description`` names the object in the error.
    """
    texts = [
        f"its {name} is {existing!r}, not {requested!r}"
        for name, existing, requested in differences
    ]
    if texts:
        raise NameAlreadyBound(
            f"{description} exists, but {', '.join(texts)}; leave out attributes that may differ, "
            f"edit the existing one, or choose another name"
        )


def differing_attributes(
    attributes: Mapping[str, Any], requested: Definition, existing: Definition
) -> Iterable[tuple[str, object, object]]:
    """Yield the name, existing value and requested value of each attribute that differs between two
    definitions. Only the names in ``attributes`` are compared."""
    existing = with_explicit_reach(existing)
    requested = comparable(requested, existing)
    for name in attributes:
        if name == "storage":
            for key in attributes["storage"] or ():
                yield from _difference(
                    f"storage.{key}", key, requested.storage, existing=existing.storage
                )
        else:
            yield from _difference(name, name, requested, existing=existing)


def _difference(
    path: str, name: str, requested: Definition | Storage, existing: Definition | Storage
) -> Iterable[tuple[str, object, object]]:
    """Yield the difference between two definitions in the attribute ``name``, or nothing if they
    agree. ``path`` is the name in the result."""
    existing_value, requested_value = getattr(existing, name), getattr(requested, name)
    if name == "dead_event_store" and requested_value:
        # The realm stores the normalized form of a name.
        requested_value = destination_name(requested_value)
    if existing_value == requested_value:
        return
    if name == "descriptors":
        # Descriptors are kilobytes of bytes, so the error does not show them.
        yield path, "other message types", "those given"
    else:
        yield path, existing_value, requested_value


def differing_fields(
    required: Mapping[str, Any], existing: object
) -> Iterable[tuple[str, object, object]]:
    """Yield the name, existing value and required value of each field that differs between
    ``required`` and the description of an existing object."""
    for name, required_value in required.items():
        if (existing_value := getattr(existing, name)) != required_value:
            yield name, existing_value, required_value

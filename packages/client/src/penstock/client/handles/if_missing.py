"""Implementation of ``create(..., if_missing=True)``, which returns an existing object with the
requested attributes instead of raising an error, and of repeated deletion."""

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
from penstock_core.vocabulary.reach import comparable, decided

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_TRIES: Final = 3
"""Bound of the loop: other clients may create and delete the object between our two requests."""


class Creating(Protocol[T_co]):
    """A function that sends a request to create an object. With ``resend`` the request is repeated
    on the next connection if one is lost."""

    def __call__(self, *, resend: bool) -> Awaitable[T_co]: ...


async def found_or_created(
    find: Callable[[], Awaitable[T]], create: Callable[[], Awaitable[T]]
) -> tuple[T, bool]:
    """Return the result of ``find``, or of ``create`` if the object does not exist, and whether it
    existed.

    Raises the errors of both, and ``NameAlreadyBound`` if an object of another kind has the name.
    """
    why = ""
    for _ in range(_TRIES):
        try:
            return await find(), True
        except NameDoesNotExist as error:
            why = str(error)
        try:
            return await create(), False
        except NameAlreadyBound:
            pass  # another client has just created it, or it is of another kind
    raise NameAlreadyBound(why)


async def created(
    find: Callable[[], Awaitable[T]],
    create: Creating[T],
    check: Callable[[T], None],
    *,
    if_missing: bool,
) -> T:
    """Return the result of ``create``; with ``if_missing``, the result of ``find`` if the object
    exists and ``check`` does not raise an error.

    If the connection is lost before the answer arrives, the object may have been created: an
    existing object that passes ``check`` is then taken for the new one. Raises the errors of the
    three functions.
    """
    if not if_missing:
        with suppress(ConnectionLost):
            return await create(resend=False)
    result, existed = await found_or_created(find, lambda: create(resend=True))
    if existed:
        check(result)
    return result


async def deleted(
    delete: Callable[[], Awaitable[object]], find: Callable[[], Awaitable[object]]
) -> None:
    """Delete an object. If the connection is lost before the answer arrives, the deletion has
    succeeded if ``find`` raises ``NameDoesNotExist``. Otherwise the request is not repeated, as the
    existing object may be a new one of that name. Raises the errors of ``delete``, including
    ``ConnectionLost`` if the outcome is unknown."""
    try:
        await delete()
    except ConnectionLost as lost:
        try:
            await find()
        except NameDoesNotExist:
            return
        except PenstockError:
            raise lost from None  # the right to delete does not imply the right to look
        raise


def refuse_differences(what: str, differing: Iterable[tuple[str, object, object]]) -> None:
    """Raise ``NameAlreadyBound`` if ``differing`` is not empty. It has the name of each attribute
    with a different value, the existing value and the requested one."""
    differences = [f"its {name} is {has!r}, not {wanted!r}" for name, has, wanted in differing]
    if differences:
        raise NameAlreadyBound(
            f"{what} exists, but {', '.join(differences)}; leave out attributes that may differ, "
            f"edit the existing one, or choose another name"
        )


def differing_attributes(
    attributes: Mapping[str, Any], wanted: Definition, existing: Definition
) -> Iterable[tuple[str, object, object]]:
    """Yield the differences between an existing store and the ``wanted`` definition: name, existing
    value, wanted value. Only names in ``attributes`` are compared."""
    existing = decided(existing)
    wanted = comparable(wanted, existing)
    for name in attributes:
        if name == "storage":
            for key in attributes["storage"] or ():
                yield from _difference(
                    f"storage.{key}", key, wanted.storage, existing=existing.storage
                )
        else:
            yield from _difference(name, name, wanted, existing=existing)


def _difference(
    path: str, name: str, wanted: Definition | Storage, existing: Definition | Storage
) -> Iterable[tuple[str, object, object]]:
    """Yield the difference between two definitions in one attribute, if there is one."""
    has, wants = getattr(existing, name), getattr(wanted, name)
    if name == "dead_event_store" and wants:
        wants = destination_name(wants)
    if has != wants:
        # Descriptors are kilobytes of bytes, so they are not shown.
        shown = (has, wants) if name != "descriptors" else ("other message types", "those given")
        yield path, *shown


def differing_fields(
    required: Mapping[str, Any], existing: object
) -> Iterable[tuple[str, object, object]]:
    """Yield the fields of ``required`` that have another value in the description of an existing
    object: name, existing value, required value."""
    for name, value in required.items():
        if (has := getattr(existing, name)) != value:
            yield name, has, value

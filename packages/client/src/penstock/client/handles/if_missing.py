"""``create(..., if_missing=True)``: what is there already is given out instead of refused, as long
as it has the attributes that were given."""

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
"""Others may create and delete it between our looking and our creating, but not for ever."""


class Creating(Protocol[T_co]):
    """A function that creates something. It is sent again on another connection with ``resend``."""

    def __call__(self, *, resend: bool) -> Awaitable[T_co]: ...


async def found_or_created(
    find: Callable[[], Awaitable[T]], create: Callable[[], Awaitable[T]]
) -> tuple[T, bool]:
    """What ``find`` or else ``create`` gives, and whether it was there before.

    Raises what they raise, and ``NameAlreadyBound`` where something of another kind has the name.
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
            pass  # it was created a moment ago, or is of another kind
    raise NameAlreadyBound(why)


async def created(
    find: Callable[[], Awaitable[T]],
    create: Creating[T],
    check: Callable[[T], None],
    *,
    if_missing: bool,
) -> T:
    """What ``create`` gives; with ``if_missing`` what is there already, if ``check`` does not
    refuse it.

    Where the connection is lost before the answer, it may have been created: then what is there
    with these attributes is taken for it. Raises what the three raise.
    """
    if not if_missing:
        with suppress(ConnectionLost):
            return await create(resend=False)
    found, was_there = await found_or_created(find, lambda: create(resend=True))
    if was_there:
        check(found)
    return found


async def deleted(
    delete: Callable[[], Awaitable[object]], find: Callable[[], Awaitable[object]]
) -> None:
    """Delete something. Where the connection is lost before the answer, it was deleted if ``find``
    does not find it any more. Otherwise it is not asked again, for it may be another one of that
    name. Raises what ``delete`` raises, among it ``ConnectionLost`` where nobody can tell."""
    try:
        await delete()
    except ConnectionLost as lost:
        try:
            await find()
        except NameDoesNotExist:
            return
        except PenstockError:
            raise lost from None  # who may delete need not be allowed to look
        raise


def refuse_differences(what: str, differing: Iterable[tuple[str, object, object]]) -> None:
    """Raise ``NameAlreadyBound`` for attributes with another value than the one that was given:
    each is a name, the value there is, and the one given."""
    said = [f"{name} is {has!r} there, not {given!r}" for name, has, given in differing]
    if said:
        raise NameAlreadyBound(
            f"{what} exists, but {', '.join(said)}; leave out what may differ, change what is "
            f"there, or choose another name"
        )


def differing_attributes(
    given: Mapping[str, Any], wanted: Definition, found: Definition
) -> Iterable[tuple[str, object, object]]:
    """The attributes among ``given`` in which a store differs from what was wanted."""
    found = decided(found)
    wanted = comparable(wanted, found)
    for name in given:
        if name == "storage":
            for each in given["storage"] or ():
                yield from _difference(f"storage.{each}", each, wanted.storage, found=found.storage)
        else:
            yield from _difference(name, name, wanted, found=found)


def _difference(
    said: str, name: str, wanted: Definition | Storage, found: Definition | Storage
) -> Iterable[tuple[str, object, object]]:
    has, given = getattr(found, name), getattr(wanted, name)
    if name == "dead_event_store" and given:
        given = destination_name(given)
    if has != given:
        shown = (has, given) if name != "descriptors" else ("other message types", "those given")
        yield said, *shown


def differing_fields(
    given: Mapping[str, Any], found: object
) -> Iterable[tuple[str, object, object]]:
    """The fields among ``given`` that have another value in the description of what was found."""
    for name, value in given.items():
        if (has := getattr(found, name)) != value:
            yield name, has, value

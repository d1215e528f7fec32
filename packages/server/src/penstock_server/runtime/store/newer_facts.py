"""What not all nodes of a cluster know yet, during a rolling upgrade: it is refused before anything
is done.

An older node could not read a block with such a fact or attribute, and would not serve the realm.
Whoever adds one that an earlier format does not have names it in ``SINCE`` or ``ATTRIBUTES_SINCE``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import msgspec
from msgspec import Struct

from penstock_core.vocabulary.errors import IllegalState
from penstock_core.vocabulary.formats import FORMAT
from penstock_server.runtime.store.records import SINCE

ATTRIBUTES_SINCE: dict[tuple[type[Struct], str], int] = {}
"""The format with which an attribute was new, by the struct that has it (``Definition``,
``DurableAttributes``, …) and its name; the others have been there from the first one on. An
attribute that has its default is not written, and so every node can read it."""


class AgreedFormat(Protocol):
    @property
    def format(self) -> int:
        """What the nodes write at the moment."""
        ...

    def behind(self, format: int) -> tuple[str, ...]:
        """The nodes that do not know ``format``, each with its version; none: all do, or it is not
        known who is there."""
        ...


class NewestFormat:
    """A realm that nobody else serves writes all that it knows."""

    format = FORMAT

    def behind(self, format: int) -> tuple[str, ...]:
        """Nobody is."""
        return ()


def refuse_newer(fact: Struct, agreed: AgreedFormat) -> None:
    """Raises ``IllegalState`` where ``fact`` is new in a later format than the nodes write, or has
    an attribute that is; it names the nodes that hold the upgrade back."""
    format = agreed.format
    if format >= FORMAT:
        return
    wanted = SINCE.get(type(fact), 1)
    if wanted > format:
        raise _refusal(f"what is asked ({type(fact).__name__})", wanted, agreed)
    for name, since in _newer_attributes(fact, format):
        raise _refusal(f"the attribute {name}", since, agreed, otherwise=f", or leave {name} out")


def _newer_attributes(value: object, format: int) -> Iterator[tuple[str, int]]:
    """The attributes with a value of their own that are newer than ``format``, and since when they
    are there."""
    if isinstance(value, tuple):
        for each in value:
            if isinstance(each, Struct | tuple):
                yield from _newer_attributes(each, format)
    if not isinstance(value, Struct):
        return
    for field in msgspec.structs.fields(value):
        given = getattr(value, field.name)
        since = max(ATTRIBUTES_SINCE.get((type, field.name), 1) for type in _structs(value))
        if since > format and given != _default(field):
            yield field.name, since
        yield from _newer_attributes(given, format)


def _structs(value: Struct) -> list[type[Struct]]:
    return [each for each in type(value).__mro__ if issubclass(each, Struct)]


def _default(field: msgspec.structs.FieldInfo) -> object:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _refusal(what: str, wanted: int, agreed: AgreedFormat, otherwise: str = "") -> IllegalState:
    if behind := ", ".join(agreed.behind(wanted)):
        who = f"{behind} cannot read it: upgrade what is older, and then run"
    else:
        who = "every node can read it: run"
    return IllegalState(
        f"{what} is new in format {wanted}, and the cluster writes format {agreed.format} until "
        f"its upgrade is finished. {who} penstock cluster upgrade --finish{otherwise}"
    )

"""Refuses facts and attributes that not all nodes of a cluster know yet, during a rolling upgrade.

An older node could not read a block with such a fact, and would not serve the realm. A fact or
attribute that is new in a format must be added to ``SINCE`` or ``ATTRIBUTES_SINCE``.
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
"""The format that introduced an attribute, by the struct that has it (``Definition``,
``DurableAttributes``, …) and its name; all other attributes exist since the first format. An
attribute with its default value is not written, so every node can read it."""


class AgreedFormat(Protocol):
    """The format that all nodes of the cluster can read."""

    @property
    def format(self) -> int:
        """The format that the nodes write at present."""
        ...

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        """Return the nodes that do not know ``format``, each with its version. Empty if all nodes
        know the format, or if the nodes are unknown."""
        ...


class NewestFormat:
    """The format of a realm outside a cluster: the newest."""

    format = FORMAT

    def nodes_behind(self, format: int) -> tuple[str, ...]:
        """Return no nodes: no other node serves this realm."""
        return ()


def refuse_newer(fact: Struct, agreed: AgreedFormat) -> None:
    """Raise ``IllegalState`` if ``fact``, or an attribute in it, is newer than the format that the
    nodes write. The error names the nodes that must be upgraded."""
    format = agreed.format
    if format >= FORMAT:  # the usual case: no upgrade is in progress
        return
    fact_since = SINCE.get(type(fact), 1)
    if fact_since > format:
        raise _refusal(f"the request ({type(fact).__name__})", fact_since, agreed)
    for name, since in _newer_attributes(fact, format):
        raise _refusal(f"the attribute {name}", since, agreed, otherwise=f", or leave {name} out")


def _newer_attributes(value: object, format: int) -> Iterator[tuple[str, int]]:
    """Yield the attributes newer than ``format`` that do not have their default, each with the
    format that introduced it."""
    if isinstance(value, tuple):
        for item in value:
            if isinstance(item, Struct | tuple):
                yield from _newer_attributes(item, format)
    if not isinstance(value, Struct):
        return
    for field in msgspec.structs.fields(value):
        field_value = getattr(value, field.name)
        since = max(ATTRIBUTES_SINCE.get((type, field.name), 1) for type in _structs(value))
        if since > format and field_value != _default(field):
            yield field.name, since
        yield from _newer_attributes(field_value, format)


def _structs(value: Struct) -> list[type[Struct]]:
    """Return the struct classes of ``value``, because a field may belong to a base class."""
    return [base for base in type(value).__mro__ if issubclass(base, Struct)]


def _default(field: msgspec.structs.FieldInfo) -> object:
    """Return the default value of a field."""
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _refusal(what: str, since: int, agreed: AgreedFormat, otherwise: str = "") -> IllegalState:
    """Return the error for a feature that the cluster cannot use before it writes the format
    ``since``. ``otherwise`` is appended to the remedy."""
    if behind := ", ".join(agreed.nodes_behind(since)):
        remedy = f"{behind} cannot read it: upgrade the older nodes, and then run"
    else:
        remedy = "every node can read it: run"
    return IllegalState(
        f"{what} is new in format {since}, but the cluster writes format {agreed.format} until "
        f"its upgrade is finished. {remedy} penstock cluster upgrade --finish{otherwise}"
    )

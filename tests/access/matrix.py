"""Tries every operation with every right, over each front end with an adapter.

An adapter signs in as a user and tries operations by name. ``without`` lists the operations that
its front end does not have. ``ADAPTERS`` is the registry: to add an adapter, import its module."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import penstock
from penstock_core.api.operations import OPERATIONS

CHANNEL, QUEUE, OTHER = "matrix/channel", "matrix/queue", "matrix/other"
"""A channel and a queue to which the rights apply, and another channel that all users may use."""
TOPICS = "matrix/%u/+"
"""A topic filter to which the rights apply."""
USER, PASSWORD = "someone", "a good password"


class Caller(Protocol):
    """A signed-in user of one front end."""

    def try_(self, operation: str) -> None:
        """Try an operation. Raises ``AccessDenied``; other refusals, such as ``NameAlreadyBound``,
        mean that access was granted."""
        ...


class Adapter(Protocol):
    name: str
    without: frozenset[str]
    """Operations that this front end does not have."""

    def signed_in(
        self, realm: penstock.Realm, user: str, password: str
    ) -> AbstractContextManager[Caller]:
        """Return a caller for the user. Raises ``AccessDenied`` for a user without access to the
        realm."""
        ...


ADAPTERS: dict[str, Callable[[], Adapter]] = {}


def register(make: Callable[[], Adapter]) -> Callable[[], Adapter]:
    """Add an adapter for the matrix test."""
    adapter = make()
    unknown = adapter.without - OPERATIONS.keys()
    if unknown:
        raise ValueError(f"{adapter.name} leaves out operations there are not: {unknown}")
    ADAPTERS[adapter.name] = make
    return make

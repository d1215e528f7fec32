"""Every operation with every right, over any front end that registers an adapter.

An adapter signs in as a user and tries each operation by name; what it cannot ask for it leaves
out, and says so in ``without``. ``ADAPTERS`` is the registry: an import of the adapter's module is
all it takes.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

import penstock
from penstock_core.api.operations import OPERATIONS

CHANNEL, QUEUE, OTHER = "matrix/channel", "matrix/queue", "matrix/other"
"""A channel and a queue that the rights are about, and another channel that all users may use."""
TOPICS = "matrix/%u/+"
"""A topic filter that the rights are about."""
USER, PASSWORD = "someone", "a good password"


class Caller(Protocol):
    """A signed-in user of one front end."""

    def try_(self, operation: str) -> None:
        """Do it. Raises ``AccessDenied``; other refusals, such as ``NameAlreadyBound``, mean that
        access was granted."""
        ...


class Adapter(Protocol):
    name: str
    without: frozenset[str]
    """Operations this front end does not offer."""

    def signed_in(
        self, realm: penstock.Realm, user: str, password: str
    ) -> AbstractContextManager[Caller]:
        """Raises ``AccessDenied`` for a user without access to the realm."""
        ...


ADAPTERS: dict[str, Callable[[], Adapter]] = {}


def register(make: Callable[[], Adapter]) -> Callable[[], Adapter]:
    """Have the matrix test run over this front end, too."""
    adapter = make()
    unknown = adapter.without - OPERATIONS.keys()
    if unknown:
        raise ValueError(f"{adapter.name} leaves out operations there are not: {unknown}")
    ADAPTERS[adapter.name] = make
    return make

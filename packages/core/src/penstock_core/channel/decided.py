"""The result of deciding a command: facts and an answer."""

from __future__ import annotations

from msgspec import Struct

from penstock_core.ids.ids import Span
from penstock_core.messages.unions import StoredFact


class Decided(Struct, frozen=True):
    """The decision about a command: facts to store, and the answer once they are stored."""

    facts: tuple[StoredFact, ...] = ()
    answer: Span | int | None = None
    is_retry: bool = False
    """Whether an earlier attempt stored the publish, so that the answer repeats the earlier answer
    (SEM X3)."""
    follows: bool = True
    """Whether the facts may have further consequences, such as copies by joins. False saves the
    search for them."""

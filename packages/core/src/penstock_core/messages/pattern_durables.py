"""Durables over patterns: one of a name on each channel whose name fits (SEM D22)."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import asdict

from penstock_core.messages.durables import AddDurable
from penstock_core.messages.kinds import RealmFact
from penstock_core.vocabulary.choice import Choice, choice_of
from penstock_core.vocabulary.durable_attributes import DURABLE_DEFAULTS, DurableAttributes
from penstock_core.vocabulary.temporary import is_temporary

PatternKey = tuple[str, str]
"""A pattern in canonical form, and the name of a durable."""


class PatternDurable(Struct, frozen=True, array_like=True):
    """What is kept of a durable over a pattern: the order of the fields is stored."""

    pattern: str
    """Patterns, and maybe names, between commas, in canonical form."""
    name: str
    kind: str
    selector: str = ""
    persistent: bool | None = None
    """None: where the channel's events survive a restart."""
    attributes: DurableAttributes = DURABLE_DEFAULTS

    @property
    def key(self) -> PatternKey:
        return self.pattern, self.name

    @property
    def choice(self) -> Choice:
        return choice_of(self.pattern)

    def takes(self, channel: str, kind: str = "channel") -> bool:
        """Whether a store of this name and kind has the durable. Temporary ones belong to a client,
        and have none."""
        return kind == "channel" and self.choice.takes(channel) and not is_temporary(channel)

    def command(self, start_id: int = 0) -> AddDurable:
        """What makes it on a channel."""
        return AddDurable(
            self.name,
            self.kind,
            start_id,
            selector=self.selector,
            matched=(),
            persistent=self.persistent,
            **asdict(self.attributes),
        )


class PatternDurableCreated(RealmFact, frozen=True):
    """From now on each channel of a pattern has a durable (SEM D22)."""

    made: PatternDurable


class PatternDurableDeleted(RealmFact, frozen=True):
    pattern: str
    name: str

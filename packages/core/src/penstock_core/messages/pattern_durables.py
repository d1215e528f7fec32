"""Durables over patterns: a durable on each channel whose name matches (SEM D22)."""

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
    """A durable over a pattern. The order of the fields is a stored format."""

    pattern: str
    """Patterns, possibly also names, separated by commas, in canonical form."""
    name: str
    kind: str
    selector: str = ""
    persistent: bool | None = None
    """Whether the durables survive a restart. None means that they do if the ids of their channel
    survive."""
    attributes: DurableAttributes = DURABLE_DEFAULTS

    @property
    def key(self) -> PatternKey:
        return self.pattern, self.name

    @property
    def choice(self) -> Choice:
        return choice_of(self.pattern)

    def takes(self, channel: str, kind: str = "channel") -> bool:
        """Whether a store with this name and kind gets the durable. Temporary stores belong to a
        client and get none."""
        return kind == "channel" and self.choice.takes(channel) and not is_temporary(channel)

    def command(self, start_id: int = 0) -> AddDurable:
        """Return the command that creates the durable on a channel."""
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
    """Each channel that matches a pattern has a durable from now on (SEM D22)."""

    made: PatternDurable
    """The durable over a pattern that was created."""


class PatternDurableDeleted(RealmFact, frozen=True):
    pattern: str
    name: str

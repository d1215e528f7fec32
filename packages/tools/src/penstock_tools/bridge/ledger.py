"""The record of the stored messages of a bridge, in a channel: nothing is stored twice.

Each batch of messages is published in one step with rows of the *ledger*, a channel whose publish
key is ``slot``: the identities of the messages at their source. A message that the source delivers
again is recognised by its identity, and settled without being published. The state of a source
that has no identities is stored in the same step.

The step has the producer and a sequence of the bridge (SEM X3), and a digest as its content. So a
repetition of the step is stored once. A step of another process with the same name, or of an
earlier process whose request was still on its way, is refused.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from penstock.client.sync.sync import Destination, Session
from penstock_core.columns.events.body import body_of_columns
from penstock_core.vocabulary.errors import (
    DifferentContent,
    IllegalState,
    InvalidArgument,
    NoSuchStage,
)

IDENTITIES_MAX: Final = 16_384
"""Number of newest identities that are remembered: twice the largest window, so that all messages
that the source may deliver again are among them."""
ATTEMPTS_MAX: Final = 3
"""Largest number of attempts to stage a batch whose stages were lost by a restart of the realm."""
PREFIX: Final = "bridge/"
"""Beginning of the name of the channel with the ledger of a bridge."""
_BATCH: Final = "batch"
"""Slot of the row that each batch has, also a batch of messages without identities."""


class Superseded(IllegalState):
    """Another process with the same name has stored a batch. Read the ledger again."""


class BridgeLedger:
    """The newest stored identities of one bridge."""

    def __init__(self, session: Session, name: str, destination: Destination, source: str) -> None:
        """Open the ledger, and create its channel if it is missing. ``source`` is the source's URL
        without secrets. Raises ``InvalidArgument`` if the name belongs to a bridge of another
        source or destination."""
        self._session = session
        self._name = name
        self._destination = destination
        self._route = f"{source} to {destination.name}"
        self._channel = session.channels.create(
            f"{PREFIX}{name}", type="persistent", keys={"slot": 1}, if_missing=True
        )
        self._by_slot: dict[str, str] = {}
        self._identities: set[str] = set()
        self.sequence = 0
        """Sequence of the newest stored batch."""
        self.state = b""
        """State of the source in the newest stored batch."""
        self._count = 0
        """Number of identities stored so far, which chooses the slot of the next one."""
        self.read()

    def __contains__(self, identity: str) -> bool:
        """Return whether the message with this identity is stored."""
        return identity in self._identities

    def read(self) -> None:
        """Read the channel. Raises ``InvalidArgument`` for the ledger of another route."""
        self._by_slot.clear()
        self._identities.clear()
        self.sequence = self._count = 0
        self.state = b""
        if not self._channel.info().events:
            return
        columns = ["slot", "identity", "number", "batch", "route", "data"]
        for row in self._channel.read(columns=columns).to_pylist():
            if row["route"] != self._route:
                raise InvalidArgument(
                    f"the bridge {self._name} is one from {row['route']}, not from "
                    f"{self._route}; choose another name"
                )
            self.sequence = max(self.sequence, row["batch"])
            if row["slot"] == _BATCH:
                self.state = row["data"]
            else:
                self._by_slot[row["slot"]] = row["identity"]
                self._count = max(self._count, row["number"] + 1)
        self._identities.update(self._by_slot.values())

    def store(
        self, bodies: Sequence[pa.RecordBatch], identities: Sequence[str], state: bytes = b""
    ) -> None:
        """Publish events and store the identities of their messages, and the state of the source,
        in one step.

        Raises ``Superseded`` if another process has stored a batch with this sequence.
        """
        slots = {
            str((self._count + index) % IDENTITIES_MAX): identity
            for index, identity in enumerate(identities)
        }
        attempt_id = uuid.uuid4().hex
        body = self._body(slots, attempt_id, state)
        content = hashlib.sha256("\n".join((attempt_id, *identities)).encode()).hexdigest()[:32]
        self._commit([*bodies], body, content)
        self.sequence += 1
        self.state = state
        self._count += len(identities)
        for slot, identity in slots.items():
            self._identities.discard(self._by_slot.get(slot, ""))
            self._by_slot[slot] = identity
        self._identities.update(identities)

    def _body(self, slots: dict[str, str], attempt_id: str, state: bytes) -> pa.RecordBatch:
        common: dict[str, Any] = {"batch": self.sequence + 1, "route": self._route}
        rows = [
            {"slot": slot, "identity": identity, "number": self._count + index, **common}
            for index, (slot, identity) in enumerate(slots.items())
        ]
        rows.append({"slot": _BATCH, "identity": attempt_id, "number": 0, **common})
        return body_of_columns([b""] * len(slots) + [state], None, rows)

    def _commit(self, bodies: list[pa.RecordBatch], body: pa.RecordBatch, content: str) -> None:
        for attempt in range(1, ATTEMPTS_MAX + 1):
            stages = [(self._channel.number, self._session.stage(self._channel, [body]))]
            if bodies:
                destination = self._destination
                stages.append((destination.number, self._session.stage(destination, bodies)))
            try:
                self._session.commit_stages(
                    stages,
                    producer=f"txn:bridge:{self._name}",  # remembered for 400 days of silence
                    sequence=self.sequence + 1,
                    content=content,
                )
            except NoSuchStage:
                if attempt == ATTEMPTS_MAX:
                    raise
            except DifferentContent as error:
                raise Superseded(
                    f"another process has stored batch {self.sequence + 1} of the bridge "
                    f"{self._name}; run one process for each name"
                ) from error
            else:
                return

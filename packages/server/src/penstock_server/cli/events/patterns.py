"""Patterns on the command line (SEM D21)."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Final

from penstock_core.vocabulary.choice import choice_of, is_pattern
from penstock_core.vocabulary.errors import AccessDenied, NameDoesNotExist, PenstockError
from penstock_server.cli.shared.messages import decoder_of

if TYPE_CHECKING:
    from penstock.client.sync.sync import Durable, Session
    from penstock.client.sync.sync_delivered import DeliveredBatch
    from penstock_core.columns.protobuf import Messages

LOOKS: Final = 16
"""Fetches after which new channels are looked for, also where there is always something."""


def means_several(realm: Session, name: str) -> bool:
    """Whether it is a pattern or a list, and not a channel that is called just that."""
    if not (is_pattern(name) or "," in name):
        return False
    try:
        realm.channels.get(name)
    except PenstockError:  # no such channel, or no such name
        return True
    return False


class MessagesOfChannels:
    """Decoders for the Protocol Buffers messages of several channels, each asked for once."""

    def __init__(self, realm: Session) -> None:
        self._realm = realm
        self._known: dict[str, Messages | None] = {}

    def __call__(self, channel: str) -> Messages | None:
        if channel not in self._known:
            try:
                self._known[channel] = decoder_of(self._realm.channels.get(channel))
            except (NameDoesNotExist, AccessDenied):  # it is gone since
                return None
        return self._known[channel]


class FetchedInTurn:
    """The durables of one name on all channels of a pattern, which are fetched from as from one.

    A subscription has more in hand than it hands out, and what it gives back is counted as
    delivered (SEM D13). Here nothing is taken that is not asked for.
    """

    def __init__(self, realm: Session, pattern: str, durable: str) -> None:
        """Raises ``NameDoesNotExist`` where no channel has it, and it is over no pattern."""
        self._realm = realm
        self._choice = choice_of(pattern)
        self._name = durable
        self._seats: dict[str, Durable] = {}
        """By channel; the one whose turn is next stands first."""
        self._fetches = 0
        self._look()
        if not (self._seats or durable in {each.name for each in realm.durables.list()}):
            raise NameDoesNotExist(
                f"no channel of {self._choice.text} that you may read has a durable {durable}; "
                "create it there first"
            )

    def fetch_batches(self, most: int, timeout_s: float) -> list[DeliveredBatch]:
        """At most so many events, all of one channel; none if none come in time."""
        self._fetches += 1
        if self._fetches % LOOKS == 0:
            self._look()
        if not self._seats:
            time.sleep(timeout_s)
        each_s = timeout_s / max(1, len(self._seats))
        for channel in list(self._seats):
            seat = self._seats[channel] = self._seats.pop(channel)
            try:
                batches = seat.fetch_batches(most, each_s)
            except (NameDoesNotExist, AccessDenied):  # its channel is gone, or the right to it
                self._seats.pop(channel).close()
                continue
            if batches:
                return batches
        self._look()
        return []

    def _look(self) -> None:
        """Find the channels that have the durable now."""
        for name in self._choice.select(self._realm.channels.list()):
            if name in self._seats:
                continue
            try:
                self._seats[name] = self._realm.channels.get(name).durables.get(self._name)
            except (NameDoesNotExist, AccessDenied):
                continue

    def close(self) -> None:
        """Confirm settlements, and leave the seats."""
        for seat in self._seats.values():
            seat.close()

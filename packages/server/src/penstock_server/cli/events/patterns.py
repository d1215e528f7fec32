"""Reading from all channels of a pattern on the command line (SEM D21)."""

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

FETCHES_PER_SCAN: Final = 16
"""Fetches after which the command searches for new channels even if events keep arriving."""


def means_several(realm: Session, name: str) -> bool:
    """Return whether ``name`` is a pattern or a list of names. False if a channel has exactly this
    name."""
    if not (is_pattern(name) or "," in name):
        return False
    try:
        realm.channels.get(name)
    except PenstockError:  # the channel does not exist, or the name is not valid
        return True
    return False


class MessagesOfChannels:
    """Decoders for the Protocol Buffers messages of several channels, requested once each."""

    def __init__(self, realm: Session) -> None:
        self._realm = realm
        self._decoders: dict[str, Messages | None] = {}

    def __call__(self, channel: str) -> Messages | None:
        if channel not in self._decoders:
            try:
                self._decoders[channel] = decoder_of(self._realm.channels.get(channel))
            except (NameDoesNotExist, AccessDenied):  # deleted after the event was read
                return None
        return self._decoders[channel]


class FetchedInTurn:
    """Fetches from the durables of one name on all channels of a pattern, in turn.

    A subscription would receive more events than it prints, and events that it returns count as
    delivered (SEM D13). Fetching takes only the events that are requested.
    """

    def __init__(self, realm: Session, pattern: str, durable: str) -> None:
        """Raise ``NameDoesNotExist`` if neither a channel nor a pattern has the durable."""
        self._realm = realm
        self._choice = choice_of(pattern)
        self._name = durable
        self._seats: dict[str, Durable] = {}
        """Durables by channel; the first is the next to fetch from."""
        self._fetches = 0
        self._find_channels()
        if not (self._seats or durable in {info.name for info in realm.durables.list()}):
            raise NameDoesNotExist(
                f"no channel of {self._choice.text} that you may read has a durable {durable}; "
                "create it there first"
            )

    def fetch_batches(self, most: int, timeout_s: float) -> list[DeliveredBatch]:
        """Return at most ``most`` events, all of one channel; empty if none arrive in time."""
        self._fetches += 1
        if self._fetches % FETCHES_PER_SCAN == 0:
            self._find_channels()
        if not self._seats:
            time.sleep(timeout_s)
        share_s = timeout_s / max(1, len(self._seats))
        for channel in list(self._seats):
            # Move the seat to the end, so that the next fetch begins with another channel.
            seat = self._seats[channel] = self._seats.pop(channel)
            try:
                batches = seat.fetch_batches(most, share_s)
            except (NameDoesNotExist, AccessDenied):  # the channel was deleted, or a right revoked
                self._seats.pop(channel).close()
                continue
            if batches:
                return batches
        self._find_channels()
        return []

    def _find_channels(self) -> None:
        """Take a seat at each channel that has the durable now."""
        for name in self._choice.select(self._realm.channels.list()):
            if name in self._seats:
                continue
            try:
                self._seats[name] = self._realm.channels.get(name).durables.get(self._name)
            except (NameDoesNotExist, AccessDenied):
                continue

    def close(self) -> None:
        """Wait for the settlements and leave the seats."""
        for seat in self._seats.values():
            seat.close()

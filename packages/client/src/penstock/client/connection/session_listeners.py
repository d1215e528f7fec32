"""The listeners of a session, and settlement errors that its end has to raise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock_core.vocabulary.errors import ConnectionLost, Elsewhere, NoQuorum, PenstockError

ErrorListener = Callable[[PenstockError], None]
InterruptionListener = Callable[[PenstockError | None], None]

_log: Final = logging.getLogger("penstock.client")

_OWED_MAX: Final = 16
"""Subscriptions whose errors are kept for the end of the session; more are only reported."""


class SessionListeners:
    """Reports errors and interruptions of a session to the listeners of the application."""

    def __init__(self) -> None:
        self.on_error: list[ErrorListener] = []
        self.on_interruption: list[InterruptionListener] = []
        self.interruption: PenstockError | None = None
        """Why the session is not connected, according to the realm's last message; None while it is
        connected, and before its first connection."""
        self._owed: dict[object, PenstockError] = {}
        """The first settlement error of each subscription that no flush or close has raised yet."""
        self._has_paid = False
        """Whether the session has ended, with or without raising an error."""

    def owe(self, owner: object, error: PenstockError) -> None:
        """Keep a settlement error. The end of the session raises it unless a flush or close of its
        ``owner`` has raised it before."""
        if len(self._owed) < _OWED_MAX and not self._has_paid:
            self._owed.setdefault(owner, error)

    def pay(self, owner: object) -> None:
        """Note that the error of ``owner`` was raised."""
        self._owed.pop(owner, None)

    def raise_owed(self) -> None:
        """Raise the first kept error, and drop the others."""
        owed = list(self._owed.values())
        self.forget_owed()
        if owed:
            raise owed[0]

    def forget_owed(self) -> None:
        """Drop the kept errors, and all later ones, at the end of the session."""
        self._owed, self._has_paid = {}, True

    def report(self, error: PenstockError) -> None:
        """Report an error that no call can raise to the listeners; without listeners, log it."""
        for listener in self.on_error:
            listener(error)
        if not self.on_error:
            cause = error.__cause__  # the application's error, with its traceback
            _log.warning("session.error: %s [%s]", error, error.code, exc_info=cause)

    def interrupted(self, reason: PenstockError | None, why: str) -> None:
        """Note that the connection was lost or a new one refused, for ``reason`` if the realm sent
        one. Listeners are called once, and again if the reason changes. ``Elsewhere`` does not
        count as a reason: the session tries the other node."""
        previous = self.interruption
        if reason is None or isinstance(reason, Elsewhere):
            reason = previous or ConnectionLost(f"the connection was lost ({why})")
        self.interruption = reason
        if previous is None or previous.code != reason.code:
            if not self.on_interruption:
                _log.warning("session.interrupted: %s [%s]", reason, reason.code)
            self._notify(reason)

    def resumed(self) -> None:
        """Note that the session is connected again."""
        if self.interruption is not None:
            self.interruption = None
            if not self.on_interruption:
                _log.info("session.resumed: the session is connected again")
            self._notify(None)

    def ended_by(self, error: PenstockError) -> PenstockError:
        """Return the error that ends a session after ``reconnect_timeout``: ``NoQuorum`` if that
        was the last reason, otherwise ``error``."""
        if isinstance(self.interruption, NoQuorum):
            return NoQuorum(f"reconnect_timeout has passed: {self.interruption}")
        return error

    def _notify(self, reason: PenstockError | None) -> None:
        """Call the listeners after this turn of the loop, so that an error in one of them does not
        affect the session."""
        for listener in self.on_interruption:
            asyncio.get_running_loop().call_soon(listener, reason)

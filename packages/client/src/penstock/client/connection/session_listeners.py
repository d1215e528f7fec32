"""The listeners of a session, and settlement errors that closing the session has to raise."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from penstock_core.vocabulary.errors import ConnectionLost, Elsewhere, NoQuorum, PenstockError

ErrorListener = Callable[[PenstockError], None]
InterruptionListener = Callable[[PenstockError | None], None]

_log: Final = logging.getLogger("penstock.client")

_KEPT_ERRORS_MAX: Final = 16
"""Largest number of subscriptions whose settlement errors are kept until the end of the session.
Errors of further subscriptions are only reported to listeners."""


class SessionListeners:
    """Reports errors and interruptions of a session to the listeners of the application."""

    def __init__(self) -> None:
        self.on_error: list[ErrorListener] = []
        self.on_interruption: list[InterruptionListener] = []
        self.interruption: PenstockError | None = None
        """Reason why the session is not connected, according to the realm's last message; None
        while the session is connected, and before its first connection."""
        self._kept_errors: dict[object, PenstockError] = {}
        """The first settlement error of each subscription that no flush or close has raised."""
        self._has_ended = False
        """Whether the session has ended, with or without raising an error."""

    def keep_error(self, subscription: object, error: PenstockError) -> None:
        """Keep a settlement error of a subscription. Closing the session raises the error, unless a
        flush or close of the subscription has already raised it."""
        if len(self._kept_errors) < _KEPT_ERRORS_MAX and not self._has_ended:
            self._kept_errors.setdefault(subscription, error)

    def drop_error(self, subscription: object) -> None:
        """Drop the kept error of a subscription, because a flush or close has raised the error."""
        self._kept_errors.pop(subscription, None)

    def raise_kept_error(self) -> None:
        """Raise the first kept error, and drop the others."""
        errors = list(self._kept_errors.values())
        self.drop_errors()
        if errors:
            raise errors[0]

    def drop_errors(self) -> None:
        """Drop all kept errors, and ignore later ones, because the session ends."""
        self._kept_errors, self._has_ended = {}, True

    def report(self, error: PenstockError) -> None:
        """Pass an error that no call can raise to the listeners; without listeners, log it."""
        for listener in self.on_error:
            listener(error)
        if not self.on_error:
            cause = error.__cause__  # the application's error, with its traceback
            _log.warning("session.error: %s [%s]", error, error.code, exc_info=cause)

    def report_interruption(self, reason: PenstockError | None, reason_text: str) -> None:
        """Record that the connection was lost or a new one was refused, and notify the listeners.

        ``reason`` is the error that the realm sent, if any; ``reason_text`` describes the loss
        otherwise. Listeners are called once for an interruption, and again if the reason changes.
        ``Elsewhere`` does not count as a reason, because the session then tries the other node.
        """
        previous = self.interruption
        if reason is None or isinstance(reason, Elsewhere):
            reason = previous or ConnectionLost(f"the connection was lost ({reason_text})")
        self.interruption = reason
        if previous is None or previous.code != reason.code:
            if not self.on_interruption:
                _log.warning("session.interrupted: %s [%s]", reason, reason.code)
            self._notify(reason)

    def report_resumption(self) -> None:
        """Record that the session is connected, and notify the listeners if it was interrupted."""
        if self.interruption is not None:
            self.interruption = None
            if not self.on_interruption:
                _log.info("session.resumed: the session is connected again")
            self._notify(None)

    def ended_by(self, error: PenstockError) -> PenstockError:
        """Return the error that ends a session when ``reconnect_timeout`` has passed.

        This is ``NoQuorum`` if the realm's last message had this reason, otherwise ``error``.
        """
        if isinstance(self.interruption, NoQuorum):
            return NoQuorum(f"reconnect_timeout has passed: {self.interruption}")
        return error

    def _notify(self, reason: PenstockError | None) -> None:
        """Call the listeners after this turn of the loop, so that an error in one of them does not
        affect the session."""
        for listener in self.on_interruption:
            asyncio.get_running_loop().call_soon(listener, reason)

"""What a program hears of its session besides the answers to what it asks."""

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
    def __init__(self) -> None:
        self.on_error: list[ErrorListener] = []
        self.on_interruption: list[InterruptionListener] = []
        self.interruption: PenstockError | None = None
        """Why there is no connection, as the realm has said last; None: there is one, or there was
        none yet."""
        self._owed: dict[object, PenstockError] = {}
        """By subscription, its first error of a settlement that no flush and no close has raised
        yet."""
        self._has_paid = False
        """Whether the session has ended, with an error or without one."""

    def owe(self, owner: object, error: PenstockError) -> None:
        """Keep an error of a settlement: the end of the session raises it, unless a flush or a
        close of its ``owner`` does before."""
        if len(self._owed) < _OWED_MAX and not self._has_paid:
            self._owed.setdefault(owner, error)

    def pay(self, owner: object) -> None:
        """Note that the program was raised the error of ``owner``."""
        self._owed.pop(owner, None)

    def raise_owed(self) -> None:
        """Raise the first error that the program was not raised yet; the others are dropped."""
        owed = list(self._owed.values())
        self.forget_owed()
        if owed:
            raise owed[0]

    def forget_owed(self) -> None:
        """Drop these errors, and those that come after the end of the session."""
        self._owed, self._has_paid = {}, True

    def report(self, error: PenstockError) -> None:
        """Tell of an error that belongs to no call."""
        for listener in self.on_error:
            listener(error)
        if not self.on_error:
            cause = error.__cause__  # the application's error, with its traceback
            _log.warning("session.error: %s [%s]", error, error.code, exc_info=cause)

    def interrupted(self, reason: PenstockError | None, why: str) -> None:
        """Note that the connection is lost, or that a new one was refused, for ``reason`` if the
        realm has said one. It is told once, and again where the reason becomes another one. That
        another node may know more is none."""
        known = self.interruption
        if reason is None or isinstance(reason, Elsewhere):
            reason = known or ConnectionLost(f"the connection was lost ({why})")
        self.interruption = reason
        if known is None or known.code != reason.code:
            if not self.on_interruption:
                _log.warning("session.interrupted: %s [%s]", reason, reason.code)
            self._tell(reason)

    def resumed(self) -> None:
        """Note that there is a connection."""
        if self.interruption is not None:
            self.interruption = None
            if not self.on_interruption:
                _log.info("session.resumed: the session is connected again")
            self._tell(None)

    def ended_by(self, error: PenstockError) -> PenstockError:
        """What ends a session that has waited for too long: ``error``, or the lack of a quorum if
        that was said last."""
        if isinstance(self.interruption, NoQuorum):
            return NoQuorum(f"the session has waited as long as it was to: {self.interruption}")
        return error

    def _tell(self, what: PenstockError | None) -> None:
        """Call the listeners after this turn: one that raises does not harm the session."""
        for listener in self.on_interruption:
            asyncio.get_running_loop().call_soon(listener, what)

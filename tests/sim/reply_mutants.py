"""Mistakes in requests and replies; ``mutants.py`` lists them with all others."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from penstock.client.handles.requesting import Requester
from penstock.client.reading.received import ReceivedEvent
from penstock_core.vocabulary.temporary import IdleReplyQueues


def any_reply(patch: pytest.MonkeyPatch) -> None:
    """Give a reply to the request that has waited longest, whichever it is for."""

    def give(requester: Requester, event: ReceivedEvent) -> None:
        for waiting in requester.waiting.values():
            if not waiting.done():
                waiting.set_result(event)
                return

    patch.setattr(Requester, "_resolve", give)


def kept_reply_queues(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(IdleReplyQueues, "due", lambda *_: [])


def hasty_removal(patch: pytest.MonkeyPatch) -> None:
    """Remove the reply queue of a session that is about to reconnect."""

    def at_once(_: IdleReplyQueues, queues: Iterable[tuple[str, bool]], now_us: int) -> list[str]:
        return [name for name, is_read in queues if not is_read]

    patch.setattr(IdleReplyQueues, "due", at_once)

"""Commits of transactions whose events were staged."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from packages.server.tests.runtime.lives import (
    Lives,
)
from penstock_server.runtime.writer.transactions import Spans


async def commit(
    lives: Lives, parts: Sequence[tuple[int, Sequence[str]]], sequence: int, producer: str = "txn:q"
) -> Spans:
    done: asyncio.Future[Spans] = asyncio.get_running_loop().create_future()

    def reply(spans: Spans, error: BaseException | None) -> None:
        if error is None:
            done.set_result(spans)
        else:
            done.set_exception(error)

    lives.realm.transactions.commit_staged(parts, producer, sequence, reply=reply)
    return await done

"""Refusals of JetStream are raised as errors of the engine, with the name of the stream."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import cast

import pytest

from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_cluster.storage.jetstream.stream import NatsStream
from penstock_core.vocabulary.errors import Unavailable
from penstock_testing.loop import simulated

INTERNAL = 10_013
"""An error that no call of a stream expects."""


class Refusing:
    """A connection to servers that refuse whatever they are asked."""

    async def ask(self, *_: object) -> bytes:
        raise JetStreamRefusal(INTERNAL, "the request is refused")


CALLS: dict[str, Callable[[NatsStream], Awaitable[object]]] = {
    "make": lambda stream: stream.make({}),
    "info": lambda stream: stream.info(),
    "try_info": lambda stream: stream.try_info(),
    "exists": lambda stream: stream.exists(),
    "subjects": lambda stream: stream.subjects("a.>"),
    "message": lambda stream: stream.message(1),
    "newest": lambda stream: stream.newest("a.b"),
    "purge": lambda stream: stream.purge(below=2),
}


@pytest.mark.parametrize("call", CALLS)
@simulated
async def test_a_refusal_names_the_stream(call: str) -> None:
    stream = NatsStream(cast("NatsConnection", Refusing()), "s")

    with pytest.raises(Unavailable, match=r"stream s.*the request is refused"):
        await CALLS[call](stream)

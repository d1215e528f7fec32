"""A question to the servers of NATS that is given up."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg

from penstock.storage.jetstream.connection import NatsConnection
from penstock.tasks import start_task
from tests.loops import on_a_loop


class Answering:
    """The client of nats-py, as far as a question goes."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self.asked = asyncio.Event()

    async def request(self, subject: str, *_: Any, timeout: float, **__: Any) -> Msg:
        self.asked.set()
        return await asyncio.wait_for(self.answer, timeout)

    def answers(self) -> None:
        client = cast("Client", None)
        self.answer.set_result(Msg(client, data=b"{}"))


@on_a_loop
async def test_an_answer_that_comes_as_the_question_is_given_up_does_not_undo_that() -> None:
    client = Answering()
    connection = NatsConnection(cast("Client", client))
    asking = start_task(connection.ask("subject"))
    await client.asked.wait()

    client.answers()
    asking.cancel()

    with pytest.raises(asyncio.CancelledError):
        await asking


@on_a_loop
async def test_an_answer_is_given_to_whoever_goes_on_after_being_told_to_end() -> None:
    client = Answering()
    connection = NatsConnection(cast("Client", client))

    async def goes_on() -> bytes:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            client.answers()
            return await connection.ask("subject")
        raise AssertionError("it is told to end")

    going_on = start_task(goes_on())
    await asyncio.sleep(0)
    going_on.cancel()

    assert await going_on == b"{}"

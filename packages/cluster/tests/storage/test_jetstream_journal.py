"""What a journal on JetStream makes of answers that come late, or never, and of checks meanwhile.

A leader refuses a message for its place as soon as another one is on its way there, and shows that
one only after a majority has it: between two questions of an owner anything may become seen.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, cast

import msgspec
import pytest

from penstock_cluster.storage.jetstream.asking import Unanswered
from penstock_cluster.storage.jetstream.connection import JetStreamRefusal, NatsConnection
from penstock_cluster.storage.jetstream.frames import HEAD_BYTES, FrameKind, encode_frame
from penstock_cluster.storage.jetstream.journal import READ_ONLY_EPOCH, JetStreamJournal
from penstock_cluster.storage.jetstream.marks import Mark
from penstock_cluster.storage.jetstream.room import EngineRoom
from penstock_cluster.storage.jetstream.stream import NatsStream
from penstock_core.vocabulary.errors import Damaged, Deposed, Unavailable
from penstock_testing.contracts import blocks_of
from penstock_testing.loop import simulated
from penstock_testing.stores import StillClock

WRONG_LAST_SEQUENCE: Final = 10071
NO_MESSAGE: Final = 10037
NO_STREAM: Final = 10059
SETTLED: Final = 1
"""The place of the frame with which the owner of these stories begins."""
DATA: Final = b"a block of some frames"
FRAMES: Final = {"one frame": len(DATA), "several frames": 8}
QUESTIONS: Final = range(13)
"""After how many its message is seen: in each gap between two of them, some rounds long."""


class LateServers:
    """A stream whose leader may take messages, say nothing, and show them some questions later."""

    def __init__(self) -> None:
        self.stored: dict[int, bytes] = {}
        self.first = 1
        self.hidden: set[int] = set()
        """Places whose message no question finds."""
        self.meanwhile: dict[int, Callable[[], Awaitable[None]]] = {}
        """Functions to call before a request is answered, by the number of the request."""
        self.question_count = 0
        self._config: dict[str, Any] = {}
        self._on_its_way: list[bytes] = []
        self._questions: int | None = None
        """Until what is on its way is seen; None: it is seen at once, and answered."""

    def fall_silent(self, questions: int, *coming: bytes) -> None:
        """Leave what is sent without an answer, behind what is ``coming`` from somebody else. After
        so many questions it is seen, one message after each, and then answers are given again."""
        self._questions = questions
        self._on_its_way += coming

    def make_anew(self) -> None:
        """Delete the stream and create another one under its name."""
        self._config["metadata"] = {}

    @property
    def end(self) -> int:
        return max(self.stored, default=0)

    async def ask(
        self, subject: str, request: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> bytes:
        if headers is not None:
            return self._publish(request, int(headers["Nats-Expected-Last-Sequence"]))
        self.question_count += 1
        if do := self.meanwhile.pop(self.question_count, None):
            await do()
        try:
            return msgspec.json.encode(self._answer(subject, msgspec.json.decode(request)))
        finally:
            self._go_on()

    def _publish(self, data: bytes, expected: int) -> bytes:
        if expected != self.end + len(self._on_its_way):
            raise JetStreamRefusal(WRONG_LAST_SEQUENCE, "wrong last sequence")
        if self._questions is not None:
            self._on_its_way.append(data)
            raise Unanswered("it is on its way")
        self.stored[expected + 1] = data
        return msgspec.json.encode({"seq": expected + 1})

    def _answer(self, subject: str, request: dict[str, Any]) -> dict[str, object]:
        if ".MSG.GET." in subject:
            return {"message": self._message(request["seq"])}
        if ".CREATE." in subject:
            self._config = self._config or request
        if not self._config:
            raise JetStreamRefusal(NO_STREAM, "stream not found")
        state = {"messages": len(self.stored), "first_seq": self.first, "last_seq": self.end}
        return {"config": self._config, "state": state, "cluster": {"leader": "n0"}}

    def _message(self, sequence: int) -> dict[str, object]:
        if sequence not in self.stored or sequence < self.first or sequence in self.hidden:
            raise JetStreamRefusal(NO_MESSAGE, "no message found")
        return {"seq": sequence, "data": self.stored[sequence]}

    def _go_on(self) -> None:
        if self._questions is None:
            return
        self._questions -= 1
        if self._questions < 0 and self._on_its_way:
            self.stored[self.end + 1] = self._on_its_way.pop(0)
            if not self._on_its_way:
                self._questions = None


class KeptMark:
    """The mark of a journal, kept in memory."""

    def __init__(self) -> None:
        self._mark: Mark | None = None

    async def read(self) -> Mark | None:
        return self._mark

    async def write(self, mark: Mark) -> None:
        self._mark = mark


class Owners:
    """Opens the journal of a stream for one owner after the other."""

    def __init__(self, data_bytes: int = len(DATA)) -> None:
        self.servers = LateServers()
        self._marks = KeptMark()
        self._frame_bytes = HEAD_BYTES + data_bytes

    def journal(self, epoch: int) -> JetStreamJournal:
        """It is not opened yet."""
        stream = NatsStream(cast("NatsConnection", self.servers), "s")
        return JetStreamJournal(
            stream,
            self._marks,
            epoch,
            clock=StillClock(),
            frame_bytes=self._frame_bytes,
            room=EngineRoom(),
        )

    async def next(self, epoch: int) -> JetStreamJournal:
        return await self.journal(epoch).open()


def of_another_owner(sequence: int = SETTLED + 1) -> bytes:
    """With what a newer owner begins, which has seen all that lies before."""
    return encode_frame(FrameKind.EPOCH, epoch=2, block=0, sequence=sequence, previous=0)


@pytest.mark.parametrize("questions", QUESTIONS)
@pytest.mark.parametrize("data_bytes", FRAMES.values(), ids=FRAMES)
@simulated
async def test_an_append_that_is_seen_late_is_stored_once_and_not_taken_for_another_owners(
    data_bytes: int, questions: int
) -> None:
    owners = Owners(data_bytes)
    journal = await owners.next(1)
    owners.servers.fall_silent(questions)

    assert await journal.append(0, [DATA]) == 1

    assert await journal.append(1, [b"goes on"]) == 2
    assert await blocks_of(await owners.next(2), 1) == [(1, DATA), (2, b"goes on")]


@pytest.mark.parametrize("questions", QUESTIONS)
@simulated
async def test_an_owner_that_begins_is_stored_once_however_late_that_is_seen(
    questions: int,
) -> None:
    owners = Owners()
    owners.servers.fall_silent(questions)

    journal = await owners.next(1)

    assert owners.servers.end == SETTLED
    assert await journal.append(0, [DATA]) == 1


@pytest.mark.parametrize("questions", QUESTIONS)
@simulated
async def test_another_owner_that_is_seen_late_deposes(questions: int) -> None:
    owners = Owners()
    journal = await owners.next(1)
    owners.servers.fall_silent(questions, of_another_owner())

    with pytest.raises(Deposed, match="another owner has stored sequence 2"):
        await journal.append(0, [DATA])


@simulated
async def test_another_owner_that_has_trimmed_its_beginning_away_deposes() -> None:
    owners = Owners()
    journal = await owners.next(1)
    owners.servers.stored = {3: of_another_owner(3)}
    owners.servers.first = 3

    with pytest.raises(Deposed, match="another owner has stored sequence 2"):
        await journal.append(0, [DATA])


@simulated
async def test_a_message_that_no_question_finds_is_damage_and_nobody_asks_for_ever() -> None:
    owners = Owners()
    journal = await owners.next(1)
    owners.servers.hidden = {SETTLED + 1}
    owners.servers.fall_silent(0)

    with pytest.raises(Damaged, match="stream s ends at sequence 2, and does not show 2"):
        await journal.append(0, [DATA])


@simulated
async def test_a_stream_that_ends_before_what_it_had_is_damage_and_nobody_asks_for_ever() -> None:
    owners = Owners()
    journal = await owners.next(1)
    owners.servers.stored.clear()

    with pytest.raises(Damaged, match="stream s ends at sequence 0, and does not show 1"):
        await journal.append(0, [DATA])


@pytest.mark.parametrize("question", range(1, 7))
@simulated
async def test_a_check_while_a_journal_is_opened_ends_nothing(question: int) -> None:
    """The engine checks its journals when it has reconnected, whatever they do."""
    owners = Owners()
    for epoch in (1, 2):
        journal = owners.journal(epoch)
        owners.servers.meanwhile = {owners.servers.question_count + question: journal.check}

        await journal.open()

        assert await journal.append(epoch - 1, [DATA]) == epoch


@simulated
async def test_a_journal_that_is_only_read_is_read_on_after_a_check() -> None:
    owners = Owners()
    await (await owners.next(1)).append(0, [DATA])
    reader = owners.journal(READ_ONLY_EPOCH)
    assert await reader.read_without_fence()

    await reader.check()

    assert await blocks_of(reader, 1) == [(1, DATA)]


@simulated
async def test_a_stream_that_was_made_anew_while_a_journal_is_opened_ends_it() -> None:
    owners = Owners()
    await (await owners.next(1)).append(0, [DATA])
    journal = owners.journal(2)

    async def made_anew() -> None:
        owners.servers.make_anew()
        await journal.check()

    owners.servers.meanwhile = {owners.servers.question_count + 5: made_anew}

    await journal.open()

    with pytest.raises(Unavailable, match="was re-created"):
        await journal.append(1, [b"more"])

"""A server with a merge channel that is killed while it is updated, over TCP: states are those of
the updates that were answered, and the one under way (SEM K2-K4)."""

from __future__ import annotations

import threading
from random import Random
from typing import Any

import pytest

import penstock
from penstock.client.sync.sync import Channel, Session
from tests.integration.lives import WAIT_S, Lives

pytestmark = [pytest.mark.process, pytest.mark.spec("K2", "K3", "K4", "S1")]

KEYS = [f"key {n}" for n in range(20)]
KILLS = 3


class Updates(threading.Thread):
    """Updates keys, each retried by the client library until it is answered."""

    def __init__(self, channel: Channel, seed: int) -> None:
        super().__init__()
        self.states: dict[str, dict[str, Any]] = {}
        self.until = threading.Event()
        self.done = 0
        self._channel = channel
        self._random = Random(seed)

    def run(self) -> None:
        while not self.until.is_set():
            events = [self._event() for _ in range(self._random.randint(1, 30))]
            self._channel.publish_many(events)
            for event in events:
                former = self.states.get(event.properties["key"], {}) if event.is_delta else {}
                self.states[event.properties["key"]] = {**former, **event.properties}
            self.done += 1

    def _event(self) -> penstock.Event:
        random = self._random
        names = random.sample("abcdefgh", random.randint(1, 3))
        properties = {name: random.choice([None, 1, 2.5, "text", [1]]) for name in names}
        properties["key"] = random.choice(KEYS)
        return penstock.Event(properties=properties, is_delta=random.random() < 0.9)


class Following(threading.Thread):
    """Merges what comes, over all connections."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self.states: dict[str, dict[str, Any]] = {}
        self.last_id = -1
        self._reading = channel.subscribe(start="earliest", timeout=WAIT_S).open()

    def run(self) -> None:
        for event in self._reading:
            assert event.event_id is not None
            assert event.event_id > self.last_id
            if event.properties["key"] == "end":
                return
            before = self.states[event.properties["key"]] if event.is_delta else {}
            self.states[event.properties["key"]] = {**before, **event.properties}
            self.last_id = event.event_id


def test_states_outlive_a_killed_server(lives: Lives, session: Session) -> None:
    rates = session.channels.create("rates", engine="merge", keys={"key": 1}, type="persistent")
    follower = Following(rates)
    follower.start()
    updates = Updates(rates, 7)
    updates.start()
    pause = threading.Event()
    for _ in range(KILLS):
        done = updates.done
        while updates.done < done + 10:
            pause.wait(0.01)
        lives.kill()
    done = updates.done
    while updates.done < done + 3:
        pause.wait(0.01)
    updates.until.set()
    updates.join(WAIT_S)
    state_by_key = {event.properties["key"]: event.properties for event in rates.browse()}
    rates.register("end")
    follower.join(WAIT_S)

    assert state_by_key == updates.states
    assert follower.states == updates.states
    with penstock.connect(lives.url) as final_session:
        late = final_session.channels.get("rates").subscribe(
            start="earliest", timeout=5, merged=True
        )
        with late:
            batch = late.next_batch()
            assert batch is not None
            assert {e.properties["key"]: e.properties for e in batch} == {
                **updates.states,
                "end": {"key": "end"},
            }

"""The traceback of an error of a blocking call: the line of the program, and few others."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import penstock
from penstock.client.sync.sync import Session


def test_an_error_has_few_frames_between_the_call_and_its_words(session: Session) -> None:
    orders: Any = session.channels.create("orders")
    for act in (
        lambda: orders.publish("text"),
        lambda: session.channels.get("none"),
        lambda: orders.subscribe(selector="price >").open(),
    ):
        with pytest.raises(penstock.PenstockError) as refused:
            act()

        frames = traceback.extract_tb(refused.value.__traceback__)
        frames_of_test = [frame for frame in frames if frame.filename == __file__]
        assert len(frames) - len(frames_of_test) <= 3
        assert not [frame for frame in frames if "concurrent" in frame.filename]
        assert "direct cause" not in "".join(traceback.format_exception(refused.value))

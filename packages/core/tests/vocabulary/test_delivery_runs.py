"""Delivery states of events, in runs (SEM D23)."""

from __future__ import annotations

import msgspec
import pytest

from penstock_core.ids.ids import Span
from penstock_core.vocabulary.delivery_runs import EVENT_STATES, OUTSTANDING, DeliveryRun


@pytest.mark.spec("D23")
def test_a_run_arrives_as_it_was_sent() -> None:
    run = DeliveryRun(Span(3, 9), "d", "in_flight", client="s1", since_us=5, deliveries=1)
    sent = msgspec.msgpack.encode(run)

    assert msgspec.msgpack.decode(sent, type=DeliveryRun) == run
    assert len(sent) < 40, "positions, not names of fields"


@pytest.mark.spec("D23")
def test_a_state_outside_the_list_is_refused() -> None:
    assert {*EVENT_STATES} - {*OUTSTANDING} == {"acknowledged", "dead"}
    with pytest.raises(msgspec.ValidationError, match="lost"):
        msgspec.convert([[0, 1], "d", "lost"], DeliveryRun)

"""Names of the durables of MQTT sessions."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.session_durables import is_of_session
from penstock_mqtt.durable_feed import durable_of, shared_durable_of


@pytest.mark.spec("M6", "M9")
def test_a_durable_of_a_session_is_told_by_its_name() -> None:
    for name in (durable_of("pump", "a/#"), durable_of("p\0bob", "$own/ä"), shared_durable_of("a")):
        assert is_of_session(name)
    for name in ("mqtt:mine", "billing", "mqtt:a:b:0123", "mqtt:a:b:0123456789abcdeg"):
        assert not is_of_session(name)

"""Each error has its reason code."""

from __future__ import annotations

from penstock_core.vocabulary.errors import AccessDenied, error_classes
from penstock_mqtt.reasons import REASONS, reason_of, reason_within
from penstock_mqtt.wire import reasons
from penstock_mqtt.wire.reasons import Reason, malformed


def test_every_error_has_a_reason_code_that_is_a_failure() -> None:
    assert REASONS.keys() == error_classes().keys()
    assert all(reason.is_failure for reason in REASONS.values())


def test_a_violation_has_its_own_and_a_packet_carries_what_it_may() -> None:
    assert reason_of(malformed("x")) == Reason.MALFORMED_PACKET
    assert reason_within(AccessDenied(), reasons.ALLOWED[reasons.PUBLISHED]) == 0x87
    assert reason_within(malformed("x"), reasons.ALLOWED[reasons.PUBLISHED]) == 0x80

"""Topic names and filters, on the wire."""

from __future__ import annotations

import pytest

from penstock_mqtt.wire.reading import check_filter, check_name
from penstock_mqtt.wire.reasons import MqttViolation, Reason


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a#",
        "#/a",
        "a/#/b",
        "+a",
        "a+/b",
        "a\0",
        "$share/g",
        "$share//a",
        "$share/+/a",
        "x" * 65_536,
    ],
)
def test_what_is_no_filter_is_told(text: str) -> None:
    with pytest.raises(MqttViolation) as caught:
        check_filter(text)
    assert caught.value.reason == Reason.PROTOCOL_ERROR


def test_a_shared_filter_has_a_group_and_a_filter() -> None:
    check_filter("$share/readers/plant/+/temp")


def test_a_name_with_wildcards_is_an_error_of_the_protocol() -> None:
    with pytest.raises(MqttViolation) as caught:
        check_name("a/+")
    assert caught.value.reason == Reason.PROTOCOL_ERROR

"""The example of Sparkplug B does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import penstock
from examples.sparkplug.edge_node import DESCRIPTORS, Payload, play, prepare


@pytest.mark.slow
@pytest.mark.spec("M8", "M16")
def test_an_edge_node_is_born_reports_and_dies() -> None:
    with penstock.Realm() as realm, realm.connect() as session:
        prepare(session)
        lines = play(realm.listen_mqtt(), session)
        last = session.channels.get("sparkplug-last")
        hot = list(last.browse(selector="device = 'oven' AND metrics[].double_value > 95"))

    kinds = [line.partition(" ")[0] for line in lines]
    assert kinds == ["NBIRTH", "DBIRTH", "DDATA", "NCMD", "NBIRTH", "DBIRTH", "NDEATH"]
    assert "96.5" in lines[5], "it is born again with what holds now"
    assert "'long_value': '7'" in lines[6]
    assert sorted(event.properties["type"] for event in hot) == ["DBIRTH", "DDATA"]


def test_the_descriptors_are_those_of_the_file() -> None:
    text = DESCRIPTORS.with_suffix(".proto").read_text(encoding="utf-8")
    numbers = {(name, int(number)) for name, number in re.findall(r"(\w+) = (\d+);", text)}

    kinds = (Payload.DESCRIPTOR, Payload.Metric.DESCRIPTOR)
    assert {(field.name, field.number) for kind in kinds for field in kind.fields} == numbers


def test_the_page_has_the_same_numbers() -> None:
    page = Path(__file__).parents[2] / "docs" / "howto" / "sparkplug.md"
    proto = page.read_text(encoding="utf-8").partition("```protobuf")[2].partition("```")[0]
    text = DESCRIPTORS.with_suffix(".proto").read_text(encoding="utf-8")

    assert set(re.findall(r"\w+ = \d+;", proto)) <= set(re.findall(r"\w+ = \d+;", text))

"""Values nested too deep: no decoder of what comes from outside fails by them, or ends the
process."""

from __future__ import annotations

import subprocess
import sys

import msgspec
import pytest

from tests.integration.nested_input import DECODERS, LEVELS

IGNORED = frozenset(
    {
        "MQTT: JSON payloads that come together",  # each is then read, and refused, by itself
        "MQTT: JSON payloads together, arrays",
        "MQTT: payloads together that end too early",
        "MQTT: the header mqtt",
        "MQTT: the header amqp",
        "AMQP: the header amqp",
        "AMQP: the header mqtt",
        "HTTP: the key of a state",  # taken for a text
        "HTTP: the id of a join",
        "HTTP: data shown as JSON",  # not shown
        "a request that a client answers",
        "an offset of Spark",
    }
)
"""What counts as absent where it cannot be read, instead of being refused."""


@pytest.mark.slow
@pytest.mark.process
def test_no_decoder_is_broken_by_nesting() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.nested_input"],
        capture_output=True,
        timeout=300,
        check=False,
    )

    lines = [msgspec.json.decode(each) for each in ended.stdout.splitlines()]
    assert ended.returncode == 0, f"it ended with {ended.returncode} at {lines[-1]}"
    found = {tuple(lines[at]): lines[at + 1] for at in range(0, len(lines), 2)}
    assert len(found) == len(DECODERS) * len(LEVELS)
    assert {each: said for each, said in found.items() if said not in ("taken", "refused")} == {}
    taken = {name for (name, levels), said in found.items() if levels > 1_000 and said == "taken"}
    assert taken == IGNORED

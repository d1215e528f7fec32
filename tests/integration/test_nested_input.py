"""Values nested too deep: every decoder of bytes from outside refuses them, and none ends the
process."""

from __future__ import annotations

import subprocess
import sys
from typing import Final

import msgspec
import pytest

from penstock_core.vocabulary.nesting import NESTING_MAX
from tests.integration.nested_input import DECODERS, FEW_LEVELS, LEVELS

ABSENT: Final = frozenset(
    {
        "MQTT: JSON payloads that come together",  # each is then read, and refused, by itself
        "MQTT: JSON payloads together, arrays",
        "MQTT: payloads together that end too early",
        "MQTT: the header mqtt",  # any publisher can have written a header
        "MQTT: the header amqp",
        "AMQP: the header amqp",
        "AMQP: the header mqtt",
        "a request that a client answers",
        "HTTP: the key of a state",  # taken for a text
        "HTTP: the id of a join",
        "HTTP: data shown as JSON",  # shown as a text
        "an offset of Spark",  # the offset of another source
    }
)
"""Values that count as absent where they cannot be read, instead of being refused."""
STORED: Final = frozenset({"stored properties in overflow"})
"""Values that were checked when they were published. Older realms stored more levels than 100, and
their events are still read; selectors leave such properties out."""
FAULTY: Final = frozenset(
    {
        "MQTT: a JSON payload that ends too early",
        "native: a frame of a client",
        "native: a frame of a server",
        "HTTP: an event",
        "HTTP: events",
        "settings",
        "a topology",
        "a topology of tables",
        "the manifest of an export",
        "the manifest of a backup",
        "the keys for tokens",
    }
)
"""Values that are refused on two levels, too: their decoders allow nothing nested there."""


@pytest.mark.slow
@pytest.mark.process
def test_every_decoder_refuses_more_than_100_levels() -> None:
    ended = subprocess.run(
        [sys.executable, "-m", "tests.integration.nested_input"],
        capture_output=True,
        timeout=300,
        check=False,
    )

    lines = [msgspec.json.decode(line) for line in ended.stdout.splitlines()]
    assert ended.returncode == 0, f"it ended with {ended.returncode} at {lines[-1]}"
    outcomes = {tuple(lines[index]): lines[index + 1] for index in range(0, len(lines), 2)}
    assert len(outcomes) == len(DECODERS) * len(LEVELS)
    for levels in LEVELS:
        by_outcome: dict[str, set[str]] = {}
        for name in DECODERS:
            by_outcome.setdefault(outcomes[name, levels], set()).add(name)
        if levels == FEW_LEVELS:
            assert by_outcome["refused"] == FAULTY
            continue
        names_stored = STORED if levels == NESTING_MAX + 1 else frozenset()
        assert by_outcome.pop("absent") == ABSENT, levels
        assert by_outcome.pop("taken", set()) == names_stored, levels
        assert by_outcome == {"refused": DECODERS.keys() - ABSENT - names_stored}, levels

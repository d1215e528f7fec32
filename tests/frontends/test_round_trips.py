"""Each protocol as a source and as a sink, as the guide's tables have it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec

import pytest

import penstock
from tests.round_trips import SINKS, SOURCES, Parts, World, assert_as_told, tables, told, world

pytestmark = pytest.mark.slow

IS_AMQP = find_spec("proton") is not None
HERE = [name for name in SOURCES if IS_AMQP or name != "AMQP"]


class Exchange:
    """What the sinks have got from each source; a source sends once."""

    def __init__(self, world: World) -> None:
        self._world = world
        self.got = cache(self._got)

    def _got(self, source: str) -> dict[str, Parts]:
        hearing = {sink: SINKS[sink](self._world) for sink in HERE}
        SOURCES[source](self._world)
        return {sink: heard() for sink, heard in hearing.items()}


@pytest.fixture(scope="module")
def exchange() -> Iterator[Exchange]:
    with penstock.Realm() as realm, world(realm, is_amqp=IS_AMQP) as everybody:
        yield Exchange(everybody)


@pytest.mark.spec("M3")
@pytest.mark.parametrize("sink", HERE)
@pytest.mark.parametrize("source", HERE)
def test_what_arrives_is_what_the_guide_says(exchange: Exchange, source: str, sink: str) -> None:
    assert_as_told(exchange.got(source)[sink], source, sink)


def test_the_guide_has_a_column_for_each_pair_and_says_why_a_part_is_lost() -> None:
    everybody = (*SOURCES, "Spark")
    for source in everybody:
        for sink in everybody:
            assert told(source, sink)
    for heading, (_, *rows) in tables().items():
        for part, *cells, why in rows:
            assert "—" not in cells or why, (heading, part)

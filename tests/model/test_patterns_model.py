"""Random lives of durables over patterns, beside a model of sets: whatever is made, ended and
restarted, each channel has what its patterns give it (SEM D22), and who watches hears of it (SEM
D21)."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from packages.server.tests.runtime.living import living
from penstock_core.api.channels import ChannelOpened
from penstock_core.api.patterns import CreatePatternDurable, WatchChannels
from penstock_core.vocabulary.choice import fits
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import NameAlreadyBound, NameDoesNotExist
from penstock_core.vocabulary.start_positions import FromEarliest
from penstock_server.runtime.realm import RunningRealm
from penstock_server.storage.memory import MemoryBlobs, MemoryJournal
from penstock_testing.loop import simulated
from tests.thorough import examples

CHANNELS = ("a/1", "a/2", "b/1", "c")
PATTERNS = ("a/*", "*/1", "**")
NAMES = ("d", "e")
KINDS = ("shared", "serial")
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("channel"), st.sampled_from(CHANNELS)),
        st.tuples(st.just("drop"), st.sampled_from(CHANNELS)),
        st.tuples(
            st.just("pattern"),
            st.sampled_from(PATTERNS),
            st.sampled_from(NAMES),
            st.sampled_from(KINDS),
        ),
        st.tuples(st.just("end"), st.sampled_from(PATTERNS), st.sampled_from(NAMES)),
        st.tuples(st.just("snapshot")),
    ),
    max_size=12,
)
Step = tuple[str, ...]


class PatternsModel:
    """The channels there are, and the patterns with the types of their durables."""

    def __init__(self) -> None:
        self.channels: set[str] = set()
        self.patterns: dict[tuple[str, str], str] = {}

    def durables(self, channel: str) -> dict[str, str]:
        return {
            name: kind for (pattern, name), kind in self.patterns.items() if fits(channel, pattern)
        }

    def may_make(self, pattern: str, name: str, kind: str) -> bool:
        others = {
            durable_kind
            for (_, durable_name), durable_kind in self.patterns.items()
            if durable_name == name
        }
        return (pattern, name) not in self.patterns and others <= {kind}


async def _do(realm: RunningRealm, model: PatternsModel, step: Step) -> None:
    match step:
        case ("channel", name) if name not in model.channels:
            await realm.create_channel(name, Definition(type="persistent"))
            model.channels.add(name)
        case ("drop", name) if name in model.channels:
            await realm.delete_channel(name)
            model.channels.discard(name)
        case ("pattern", pattern, name, kind):
            request = CreatePatternDurable(pattern, name, kind, start=FromEarliest())
            if model.may_make(pattern, name, kind):
                await realm.pattern_durables.create(request)
                model.patterns[pattern, name] = kind
            else:
                with pytest.raises(NameAlreadyBound):
                    await realm.pattern_durables.create(request)
        case ("end", pattern, name):
            if model.patterns.pop((pattern, name), None) is not None:
                await realm.pattern_durables.delete(pattern, name)
            else:
                with pytest.raises(NameDoesNotExist):
                    await realm.pattern_durables.delete(pattern, name)
        case ("snapshot",):
            await realm.snapshot()
        case _:
            pass  # it is there already, or is not


def _check(realm: RunningRealm, model: PatternsModel) -> None:
    directory = realm.directory
    assert {
        (pattern.pattern, pattern.name): pattern.kind for pattern in directory.patterns
    } == model.patterns
    durables_by_channel = {
        channel.state.name: {
            name: durable.kind.name for name, durable in channel.state.durables.items()
        }
        for channel in directory.channels.values()
    }
    assert durables_by_channel == {name: model.durables(name) for name in model.channels}


@simulated
async def _live(lives: list[list[Step]]) -> None:
    model, journal, blobs = PatternsModel(), MemoryJournal(), MemoryBlobs()
    for steps in lives:
        async with living(journal, blobs) as realm:
            _check(realm, model)
            channels = set(model.channels)
            names_heard: list[str] = []

            def tell(channels: tuple[ChannelOpened, ...], names: list[str] = names_heard) -> None:
                names.extend(info.name for info in channels)

            _, watched = realm.watches.begin(WatchChannels("a/*", 1), lambda _: True, tell)
            made = [name for name in channels if fits(name, "a/*")]
            assert sorted(channel.name for channel in watched.channels) == sorted(made)
            heard: list[str] = []
            for step in steps:
                before = set(model.channels)
                await _do(realm, model, step)
                heard += [name for name in model.channels - before if fits(name, "a/*")]
                _check(realm, model)
            assert names_heard == heard


@pytest.mark.slow
@pytest.mark.spec("D21", "D22")
@settings(max_examples=examples(40), deadline=None, derandomize=True)
@given(st.lists(STEPS, min_size=1, max_size=3))
def test_channels_have_what_their_patterns_give_them_over_restarts(
    lives: list[list[Step]],
) -> None:
    _live(lives)

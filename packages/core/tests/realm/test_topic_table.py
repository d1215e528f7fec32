"""The table of channels with topics follows their creation, edits and deletion."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from penstock_core.messages.definitions import ChannelCreated, ChannelDeleted, Edited
from penstock_core.realm.directory import Directory
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.bootstrap import rules


@pytest.mark.spec("M12")
def test_channels_with_topics_are_known_from_their_first_event_on() -> None:
    realm_directory = Directory(rules())
    versions: list[int] = []
    realm_directory.topics.on_changed = lambda: versions.append(realm_directory.topics.version)

    realm_directory.apply(realm_directory.decide_create("plain", Definition()))
    realm_directory.apply(
        realm_directory.decide_create("temps", Definition(topics=("a/{b}",), start_event_id=7))
    )
    assert realm_directory.topics.since == {2: 7}
    realm_directory.channels[1].apply(Edited(Definition(topics=("c",))))
    realm_directory.note_topics(1)
    assert realm_directory.topics.since == {2: 7, 1: 0}
    realm_directory.apply(ChannelDeleted(2))
    assert realm_directory.topics.since == {1: 0}
    realm_directory.channels[1].apply(Edited(Definition()))
    realm_directory.note_topics(1)
    assert realm_directory.topics.since == {}
    assert versions == [1, 2, 3, 4]


@pytest.mark.spec("M12", "C3")
@pytest.mark.parametrize(
    ("definition", "said"),
    [
        (Definition(kind="queue", topics=("a",)), "an attribute of channels, not of a queue"),
        (Definition(payload="json"), "set topics, too"),
        (Definition(topics=("x", "a/+")), "of second belongs to first already, as 'a/{b}'"),
    ],
)
def test_topics_that_cannot_be_are_refused(definition: Definition, said: str) -> None:
    realm_directory = Directory(rules())
    realm_directory.apply(realm_directory.decide_create("first", Definition(topics=("a/{b}",))))

    with pytest.raises(InvalidArgument, match=said):
        realm_directory.decide_create("second", definition)


@pytest.mark.spec("M12", "N8")
def test_a_local_channel_may_have_topics() -> None:
    realm_directory = Directory(replace(rules(), local_to="n2"))
    realm_directory.apply(realm_directory.decide_create("cells", Definition(topics=("a",))))

    assert realm_directory.topics.since == {1: 0}


@pytest.mark.spec("M12")
def test_since_when_a_channel_has_topics_is_part_of_its_snapshot() -> None:
    realm_directory = Directory(rules())
    realm_directory.apply(realm_directory.decide_create("late", Definition()))
    state = realm_directory.channels[1].state
    state.next_id = 7
    realm_directory.channels[1].apply(Edited(Definition(topics=("a",))))
    state.next_id = 9
    realm_directory.channels[1].apply(Edited(Definition(topics=("a", "b"))))
    again = Directory(rules())
    again.apply(ChannelCreated(1, "late", state.definition))
    again.channels[1].apply(realm_directory.channels[1].snapshot())
    again.note_topics(1)

    assert again.topics.since == {1: 7}

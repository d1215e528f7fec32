"""The namespace of a realm."""

from __future__ import annotations

import pytest

from penstock.bootstrap import rules
from penstock.core.directory import ChannelDeleted, Directory
from penstock.core.errors import InvalidArgument, InvalidName, NameAlreadyBound, NameDoesNotExist
from penstock.core.messages import Definition, Storage


def directory(*names: str) -> Directory:
    made = Directory(rules())
    for name in names:
        made.apply(made.decide_create(name, Definition()))
    return made


@pytest.mark.spec("C2")
def test_two_spellings_of_a_name_are_one_channel() -> None:
    found = directory("a/b")

    assert found.number_of("/a::b") == 1
    with pytest.raises(NameAlreadyBound):
        found.decide_create("a\\b", Definition())


@pytest.mark.spec("C2")
@pytest.mark.parametrize(("there", "wanted"), [("a/b/c", "a/b"), ("a/b", "a/b/c")])
def test_no_channel_is_named_like_a_folder(there: str, wanted: str) -> None:
    found = directory(there)

    with pytest.raises(InvalidName):
        found.decide_create(wanted, Definition())
    assert len(found.channels) == 1


@pytest.mark.spec("C2")
def test_a_folder_is_gone_with_its_last_channel() -> None:
    found = directory("a/b", "a/c")
    found.apply(found.decide_delete("a/b"))

    with pytest.raises(InvalidName):
        found.decide_create("a", Definition())
    found.apply(found.decide_delete("a/c"))
    found.apply(found.decide_create("a", Definition()))
    assert found.number_of("a") == 3


def test_a_channel_deleted_and_made_again_is_another_one() -> None:
    found = directory("a")
    found.apply(found.decide_delete("a"))
    found.apply(found.decide_create("a", Definition()))

    assert found.number_of("a") == 2
    found.apply(ChannelDeleted(1))
    assert found.number_of("a") == 2, "deleting what is gone changes nothing"


def test_a_wrong_case_is_pointed_out() -> None:
    with pytest.raises(NameDoesNotExist, match="case-sensitive: there is Orders"):
        directory("Orders").number_of("orders")


@pytest.mark.spec("C3")
@pytest.mark.parametrize(
    ("definition", "reason"),
    [
        (Definition(type="paper"), "mixed, persistent, reliable"),
        (Definition(engine="steam"), "default"),
        (Definition(ttl=-1), "ttl is -1"),
        (Definition(capacity=2_147_483_647), "capacity is 2147483647"),
        (Definition(start_event_id=-5), "start_event_id is -5"),
        (Definition(storage=Storage(events_per_spindle=-1)), "events_per_spindle is -1"),
    ],
)
def test_attributes_out_of_bounds_are_refused(definition: Definition, reason: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        directory().decide_create("a", definition)

    assert reason in str(refused.value)

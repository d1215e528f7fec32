"""Tests for penstock_spark.replaying.position."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from penstock_core.vocabulary.errors import IllegalState, InvalidArgument
from penstock_spark.replaying.position import FILE, PositionFile, open_position, write

WHAT = {"archive": "lake/flights", "until": ""}


@pytest.mark.parametrize("ahead", ["", "file://"])
def test_a_position_is_read_as_it_was_written(tmp_path: Path, ahead: str) -> None:
    place = PositionFile(f"{ahead}{tmp_path}")
    position = replace(open_position(place, WHAT), number=3, ends={"flights": 9}, is_open=True)
    write(place, position)

    assert open_position(PositionFile(f"{ahead}{tmp_path}"), WHAT) == position
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


def test_a_new_folder_is_a_new_producer(tmp_path: Path) -> None:
    places = [PositionFile(str(tmp_path / name)) for name in "ab"]
    first, second = (open_position(place, WHAT).producer for place in places)

    assert first != second
    assert first.startswith("txn:replay/")


def test_a_write_that_is_cut_off_leaves_what_was_there(tmp_path: Path) -> None:
    place = PositionFile(str(tmp_path))
    position = open_position(place, WHAT)
    write(place, position)
    (tmp_path / "position.new").write_bytes(b'{"form')

    assert open_position(place, WHAT) == position
    write(place, replace(position, number=1))
    assert open_position(place, WHAT).number == 1


def test_a_position_of_something_else_is_refused(tmp_path: Path) -> None:
    place = PositionFile(str(tmp_path))
    write(place, replace(open_position(place, WHAT), published=1_000))

    with pytest.raises(InvalidArgument, match=r"until is '9'.*with '' and has published 1,000"):
        open_position(place, {**WHAT, "until": "9"})


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (b"{", "cannot be read: the document ends too early, or .*; move"),
        (b'{"producer":"p","replays":{},"format":2}', "has format 2"),
    ],
)
def test_what_is_no_position_is_told(tmp_path: Path, content: bytes, text: str) -> None:
    (tmp_path / FILE).write_bytes(content)

    with pytest.raises(IllegalState, match=text):
        open_position(PositionFile(str(tmp_path)), WHAT)

"""``make weight`` finds what is there: in a tree of a few lines, and in a publish that runs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from scripts.weight import shape
from scripts.weight.__main__ import ROOT, main, written
from scripts.weight.publish import trip_of_a_publish, walk
from scripts.weight.source import GENERATED, Source, mentions, sources_below, workspace_sources

LIFE = '''"""A life."""


def test_it() -> None:
    async def life() -> None:
        pass

    run(life())


async def test_another() -> None:
    async def inner() -> None:
        pass

    await inner()
'''
DURABLES = '''"""Durables."""

from typing import NewType

from penstock_server.runtime.orders import Order

# order_by is no attribute of this one.
Id = NewType("Id", int)


class Table:
    """Of orders, by order_by."""

    name: str
    """The same as theirs."""


def show(order: Order) -> str:
    return f"{order.deliver_at}"
'''
TREE = {
    "packages/client/src/penstock/__init__.py": "",
    "packages/server/src/penstock_server/runtime/__init__.py": '"""The realm."""\n',
    "packages/server/src/penstock_server/runtime/durables.py": DURABLES,
    "packages/server/src/penstock_server/runtime/orders.py": (
        '"""Orders."""\n\n\nclass Order:\n    deliver_at = 0\n'
    ),
    "packages/server/src/penstock_server/runtime/store/__init__.py": "",
    "packages/server/src/penstock_server/runtime/store/rows.py": (
        "from penstock_server.runtime import orders\n\n\n"
        "class Table:\n    def get(self):\n        return orders.KEYS['order_by']\n"
    ),
    "tests/test_life.py": LIFE,
}


def tree(folder: Path, files: Mapping[str, str] = TREE) -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Source]:
    return {source.module: source for source in workspace_sources(tree(tmp_path))}


def test_lines_are_counted_by_their_kind(sources: Mapping[str, Source]) -> None:
    lines = shape.lines_of([sources["penstock_server.runtime.durables"]])

    assert lines == shape.Lines(total=19, imports=2, documentation=3, comments=1, blank=8)
    assert shape.function_lines(list(sources.values())) == [2, 2]


def test_an_attribute_stands_in_code_and_not_in_prose(sources: Mapping[str, Source]) -> None:
    files = list(sources.values())

    assert shape.modules_with(files, "order_by") == ["penstock_server.runtime.store.rows"]
    assert shape.modules_with(files, "deliver_at") == [
        "penstock_server.runtime.durables",
        "penstock_server.runtime.orders",
    ]
    assert not mentions(sources["penstock_server.runtime.orders"], "deliver")


def test_a_class_name_of_two_modules_is_found(sources: Mapping[str, Source]) -> None:
    assert shape.repeated_classes(list(sources.values())) == {
        "Table": ["penstock_server.runtime.durables", "penstock_server.runtime.store.rows"]
    }


def test_a_generated_twin_is_no_second_class_of_a_name(tmp_path: Path) -> None:
    text = f'"""A twin."""\n\n{GENERATED}scripts/twins.py: do not edit.\n\nclass Table: ...\n'
    by_hand = {"packages/client/src/penstock/client/hand.py": "class Orders: ...\n"}
    twins = {"packages/client/src/penstock/client/twin.py": text, **by_hand}
    twins_by_name = shape.repeated_classes(workspace_sources(tree(tmp_path, {**TREE, **twins})))

    assert "penstock.client.twin" not in twins_by_name["Table"]
    assert len(twins_by_name["Table"]) == 2


def test_a_fragment_is_short_and_has_one_user(tmp_path: Path, sources: dict[str, Source]) -> None:
    text = "from penstock_server.runtime.store.rows import Table\n" + "\n" * shape.FRAGMENT_LINES
    user = {
        "packages/server/src/penstock_server/runtime/long.py": text,
        "packages/server/src/penstock_server/runtime/again.py": "import os\n",
    }
    files = workspace_sources(tree(tmp_path, user))

    assert shape.fragments(list(sources.values())) == {}, "orders has two users, the others none"
    assert shape.fragments(files) == {
        "penstock_server.runtime.store.rows": "penstock_server.runtime.long"
    }


def test_docstrings_that_need_a_neighbour_are_found(sources: Mapping[str, Source]) -> None:
    files = list(sources.values())

    assert shape.openings(files) == {"Of ": 1, "The same": 1}
    assert shape.new_types(files) == 1


def test_a_room_is_a_folder_or_a_module(tmp_path: Path, sources: Mapping[str, Source]) -> None:
    rooms = shape.rooms_of(list(sources.values()), "penstock_server.runtime")

    assert rooms.arrows == {("durables", "orders"), ("store", "orders")}
    assert rooms.back() == []


def test_an_arrow_back_closes_a_circle(tmp_path: Path) -> None:
    circle = {
        "packages/server/src/penstock_server/runtime/orders.py": (
            "def get():\n    import penstock_server.runtime.store.rows"
        )
    }
    files = workspace_sources(tree(tmp_path, TREE | circle))

    back = shape.rooms_of(files, "penstock_server.runtime").back()

    assert back in ([("orders", "store")], [("store", "orders")])


def test_a_story_that_is_wrapped_is_found(tmp_path: Path) -> None:
    tests = sources_below(tree(tmp_path) / "tests", shape.tree_if_it_wraps)

    assert shape.wrapped_stories(tests) == ["test_life.test_it"]


def test_the_table_has_figures_with_their_targets(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--still", "--root", str(tree(tmp_path))]) == 0

    printed = capsys.readouterr().out
    rows = [line.split() for line in printed.splitlines()]
    assert ["source", "lines", "31", "74,000"] in rows
    assert ["files", "with", "deliver_at", "2", "9"] in rows
    assert ["rooms", "of", "penstock_server.runtime", "3", "10"] in rows
    assert "files with order_by:\n  penstock_server.runtime.store.rows\n" in printed


@pytest.mark.slow
def test_a_publish_is_followed_from_the_client_to_the_disk_and_back() -> None:
    trip = trip_of_a_publish(warming=5, measured=3)

    shown: list[str] = []
    walk(trip, shown.append)
    files = [line.partition(":")[0].strip() for line in shown]
    assert {"thread 1", "thread 2"} <= set(files)
    assert {"penstock", "penstock_core", "penstock_server"} <= {
        file.partition("/")[0] for file in files
    }
    assert trip.called > trip.moves > trip.files > len(trip.calls)
    assert trip.moves == sum(not line.startswith("thread") for line in shown) - len(trip.calls)


HELD = ("files with", "rooms of", "arrows back", "docstrings that begin", "tests that wrap")
"""Figures that have come to their target."""


@pytest.mark.slow
def test_figures_that_have_come_to_their_target_stay_there() -> None:
    held = [figure for figure in written(ROOT) if figure.name.startswith(HELD)]

    assert len(held) == 11
    exceeded = {
        figure.name: figure.items for figure in held if int(figure.value) > int(figure.target)
    }
    assert exceeded == {}, "make weight shows all figures; derive it in one place, as others do"

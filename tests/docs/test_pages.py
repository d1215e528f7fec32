"""Reading pages: blocks, commands, and that a wrong example does not go unnoticed."""

from __future__ import annotations

import traceback
from pathlib import Path

import pytest

from tests.docs.pages import Command, blocks, commands, prose
from tests.docs.reading import Reader

PAGE = """# Page

```python
value = 1
```

Text with ![a](picture.png).

```console
penstock channel list --format json   # all of them
penstock browse orders > orders.txt
ls
penstock serve --data ./data
```

```python spark
assert value == 2, "two"
```
"""


@pytest.fixture
def page(tmp_path: Path) -> Path:
    written = tmp_path / "page.md"
    written.write_text(PAGE)
    return written


def test_blocks_know_their_language_marks_and_line(page: Path) -> None:
    blocks_of_page = [(block.language, block.is_spark, block.line) for block in blocks(page)]

    assert blocks_of_page == [("python", False, 4), ("console", False, 10), ("python", True, 17)]
    assert "value" not in prose(page)


def test_commands_are_cut_at_what_is_the_shells(page: Path) -> None:
    listing, browsing, serving = commands(page)

    assert listing.arguments == ["channel", "list", "--format", "json"]
    assert listing.is_plain
    assert browsing.arguments == ["browse", "orders"]
    assert not browsing.is_plain
    assert serving.line == 13


def test_a_reader_runs_what_ends_by_itself_and_stops_at_a_wrong_example(page: Path) -> None:
    run: list[Command] = []
    reader = Reader("penstock://localhost:1", run.append)

    assert reader.follow(page) == 2
    assert [command.arguments[:2] for command in run] == [["channel", "list"]]
    with pytest.raises(AssertionError, match="two") as failure:
        reader.follow(page, spark=True)
    assert traceback.extract_tb(failure.value.__traceback__)[-1].lineno == 17

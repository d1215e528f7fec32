"""Every example on a page runs as it is written."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark import SparkContext

from tests.docs.pages import GUIDE, PAGES, README, ROOT, blocks, commands, name_of
from tests.docs.reading import Reader


def is_spark(page: Path) -> bool:
    return any(block.is_spark for block in blocks(page))


def has_examples(page: Path) -> bool:
    python = any(block.language == "python" and not block.is_spark for block in blocks(page))
    return python or bool(commands(page))


GUARDED = [ROOT / "docs" / name for name in ("guide/security.md", "howto/prometheus.md")]
"""Pages for administrators of a realm with users, over TLS."""
FOUNDING = [ROOT / "docs" / "howto" / "tls-and-users.md"]
"""Pages on which the reader starts a realm."""
OPEN = [page for page in PAGES if has_examples(page) and page not in (*GUARDED, *FOUNDING)]


@pytest.mark.slow
@pytest.mark.parametrize("page", OPEN, ids=name_of)
def test_a_page_can_be_followed(page: Path, reader: Reader) -> None:
    assert reader.follow(page) > 0


@pytest.mark.slow
@pytest.mark.parametrize("page", GUARDED, ids=name_of)
def test_a_page_for_administrators_can_be_followed(page: Path, guarded_reader: Reader) -> None:
    assert guarded_reader.follow(page) > 0


@pytest.mark.slow
@pytest.mark.parametrize("page", FOUNDING, ids=name_of)
def test_a_page_that_sets_up_a_realm_can_be_followed(page: Path, founder: Reader) -> None:
    assert founder.follow(page) > 2


@pytest.mark.slow
@pytest.mark.usefixtures("java")
@pytest.mark.parametrize("page", [page for page in PAGES if is_spark(page)], ids=name_of)
def test_a_page_with_spark_can_be_followed(page: Path, reader: Reader) -> None:
    _paths_begin_here()

    assert reader.follow(page, spark=True) > 0


def _paths_begin_here() -> None:
    """A JVM that another test has started begins with relative paths where that one was."""
    jvm = SparkContext._jvm
    if jvm is not None:
        hadoop = jvm.org.apache.hadoop
        files = hadoop.fs.FileSystem.getLocal(hadoop.conf.Configuration())
        files.setWorkingDirectory(hadoop.fs.Path(Path.cwd().as_uri()))


def test_the_guide_has_its_pages() -> None:
    written = {page.stem for page in GUIDE}

    assert {"events", "channels", "durables", "selectors", "operating"} <= written
    assert {"queues", "transactions", "joins", "meeting-rules"} <= written
    assert {"pipelines", "pipeline-join"} <= written
    assert has_examples(README)

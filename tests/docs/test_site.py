"""The site: it builds without a warning, needs nothing from elsewhere, and has every page."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, name_of
from tests.docs.site import fitted, outside, page_of, slug

BUILD_TIMEOUT_S = 120
LOADED = re.compile(r"<(?:script|img|link|iframe)\b[^>]*?\b(?:src|href)=\"?(?:https?:)?//", re.I)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=BUILD_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def shown(page: Path) -> str:
    """The page of the site, by its path below the folder."""
    uri = Path(page_of(name_of(page)))
    return uri.with_name("index.html" if uri.stem == "README" else f"{uri.stem}.html").as_posix()


@pytest.mark.slow
@pytest.mark.process
def test_every_page_is_on_the_site_and_can_be_reached(site: Path) -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *map(ROOT.joinpath, outside())]
    menu = (site / "index.html").read_text(encoding="utf-8")
    reachable = set(re.findall(r'href="([^"#]+)"', menu))
    for folder in {Path(link).parent for link in reachable if link.endswith(".html")}:
        text = "".join(page.read_text(encoding="utf-8") for page in (site / folder).glob("*.html"))
        links = re.findall(r'href="([^"#]+\.html)', text)
        reachable |= {os.path.normpath(folder / link) for link in links}

    written = {shown(page) for page in pages if page.suffix == ".md"}
    assert sorted(page for page in written if not (site / page).is_file()) == []
    assert sorted(written - reachable - {"index.html"}) == []


@pytest.mark.slow
@pytest.mark.process
def test_readers_load_nothing_from_elsewhere(site: Path) -> None:
    pages = [*site.rglob("*.html"), *site.rglob("*.css")]

    assert len(pages) > 40
    for page in pages:
        text = page.read_text(encoding="utf-8")
        assert LOADED.findall(text) == [], page.relative_to(site)
        assert re.findall(r"url\(\"?https?:|@import", text) == [], page.relative_to(site)


@pytest.mark.parametrize(
    ("page", "written", "fits"),
    [
        ("README.md", "[a](docs/guide/events.md#names)", "[a](guide/events.md#names)"),
        ("README.md", "![a](docs/images/a.png)", "![a](images/a.png)"),
        ("docs/guide/events.md", "[a](channels.md)", "[a](channels.md)"),
        ("docs/guide/events.md", "[a](../../README.md)", "[a](../index.md)"),
        ("docs/guide/events.md", "[a](../adr)", "[a](../adr/README.md)"),
        ("docs/guide/events.md", "[a](../../src)", "a"),
        ("docs/guide/events.md", "[a](#here) [b](https://b)", "[a](#here) [b](https://b)"),
        (
            "docs/guide/events.md",
            "```toml a.toml\n[a](b)\n```",
            '```toml title="a.toml"\n[a](b)\n```',
        ),
        ("docs/guide/events.md", "```python spark\n1\n```", "```python\n1\n```"),
        ("docs/guide/events.md", "Some:\n- one\n  - two", "Some:\n\n- one\n    - two"),
    ],
)
def test_a_page_is_fitted_into_the_site(page: str, written: str, fits: str) -> None:
    if "images" in written:
        written, fits = (
            written.replace("a.png", "flights.png"),
            fits.replace("a.png", "flights.png"),
        )

    assert fitted(written, page) == fits


def test_anchors_are_those_of_the_forge() -> None:
    assert slug("Where `rules` meet: A & B", "-") == "where-rules-meet-a--b"

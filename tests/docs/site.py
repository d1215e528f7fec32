"""Adapts the pages of the repository for the site: the hooks of ``mkdocs.yml``.

Pages are written for a forge such as GitHub, where links are paths between files. The site also has
pages for files outside of ``docs/``, and links to such files are changed to these pages. Links to
files without a page become plain text."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]

_FENCED = re.compile(r"^(```[^\n]*\n.*?^```)[^\S\n]*$", re.MULTILINE | re.DOTALL)
_OPENING = re.compile(r"^```(\S+) +(\S+)", re.MULTILINE)
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_ITEM = re.compile(r"^( *)([-*]|\d+\.) ")

_SCHEMES = ("http://", "https://", "mailto:", "penstock://")


def page_of(path: str) -> str:
    """Return the path of a file of the repository in the site."""
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    path = path.removesuffix("/README.md").removesuffix(".md")
    return f"project/{path}.md"


def file_at(path: str) -> str | None:
    """Return the file that a link to ``path`` shows: for a folder its README; ``None`` if it has no
    page."""
    target = ROOT / path
    if target.is_dir():
        path = f"{path}/README.md"
    return path if (ROOT / path).is_file() else None


def links_of(path: str) -> Iterator[str]:
    """Return the files of the repository to which a page links."""
    text = _FENCED.sub("", (ROOT / path).read_text(encoding="utf-8"))
    for link in _LINK.finditer(text):
        if target := _target(path, link[3]):
            yield target


def _target(path: str, link: str) -> str | None:
    address, _, _ = link.partition("#")
    if not address or link.startswith(_SCHEMES):
        return None
    return file_at(posixpath.normpath(posixpath.join(posixpath.dirname(path), address)))


def outside() -> list[str]:
    """Return all files outside of ``docs/`` to which pages link, directly or indirectly."""
    first = [path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").rglob("*.md")]
    seen = {"README.md", "ARCHITECTURE.md", "CHANGELOG.md", "CONTRIBUTING.md"}
    waiting = [*first, *seen]
    while waiting:
        path = waiting.pop()
        for target in links_of(path):
            if not target.startswith("docs/") and target not in seen:
                seen.add(target)
                waiting += [target] if target.endswith(".md") else []
    return sorted(seen)


def fitted(text: str, path: str) -> str:
    """Return the text of the page at ``path`` for the site."""
    parts = _FENCED.split(text)
    return "".join(
        _OPENING.sub(_opening, part) if index % 2 else _prose(part, path)
        for index, part in enumerate(parts)
    )


def _opening(match: re.Match[str]) -> str:
    """Return the opening line of a code block. A mark with a dot is the name of a file, which
    becomes the title; other marks are for tests, and are left out."""
    title = f' title="{match[2]}"' if "." in match[2] else ""
    return f"```{match[1]}{title}"


def _prose(text: str, path: str) -> str:
    linked = _LINK.sub(lambda match_: _link(match_, path), text)
    return "\n".join(_lists(linked.split("\n")))


def _link(match: re.Match[str], path: str) -> str:
    mark, words, link = match.groups()
    if link.startswith((*_SCHEMES, "#")):
        return match[0]
    target = _target(path, link)
    if target is None:
        return str(words)
    _, hash_, anchor = link.partition("#")
    here = posixpath.dirname(page_of(path))
    return f"{mark}[{words}]({posixpath.relpath(page_of(target), here or '.')}{hash_}{anchor})"


def _lists(lines: list[str]) -> Iterator[str]:
    """Return the lines with an empty line before each list and an indentation of four spaces for
    nested ones, as Python-Markdown needs."""
    before = ""
    for line in lines:
        item = _ITEM.match(line)
        if item and before.strip() and not _ITEM.match(before) and not before.startswith(" "):
            yield ""
        yield item[1] + line if item else line
        before = line


def slug(text: str, separator: str) -> str:
    """Return the anchor of a heading, as forges make it."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


# --- hooks --------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Set the function for anchors, and complete the navigation."""
    config.mdx_configs["toc"]["slugify"] = slug
    assert config.nav is not None
    named = set(_pages(config.nav))
    config.nav = _filled(config.nav)
    rest = [uri for uri in _listed("guide/") if uri not in named]
    next(part["Operations"] for part in config.nav if "Operations" in part).extend(rest)
    inner = [page_of(path) for path in outside() if page_of(path) not in named]
    if inner:
        next(part["Project"] for part in config.nav if "Project" in part).append({"Files": inner})
    return config


def _pages(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    for part in nav if isinstance(nav, list) else nav.values() if isinstance(nav, dict) else ():
        yield from _pages(part)


def _filled(nav: Any) -> Any:
    """Return the navigation with folders replaced by their pages."""
    if isinstance(nav, list):
        return [_filled(part) for part in nav]
    if isinstance(nav, dict):
        return {title: _filled(part) for title, part in nav.items()}
    return _listed(nav) if nav.endswith("/") else nav


def _listed(folder: str) -> list[str]:
    """Return the pages of a folder in ``docs/``: its README, then the others in the order of its
    links."""
    names = sorted(path.name for path in (ROOT / "docs" / folder).glob("*.md"))
    order = ["README.md", *(link[3] for link in _LINK.finditer(_readme(folder)))]
    return [folder + name for name in sorted(names, key=lambda name: _rank(order, name))]


def _readme(folder: str) -> str:
    return (ROOT / "docs" / folder / "README.md").read_text(encoding="utf-8")


def _rank(order: list[str], name: str) -> int:
    return order.index(name) if name in order else len(order)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside of ``docs/`` as pages."""
    for path in outside():
        text = (ROOT / path).read_text(encoding="utf-8")
        if not path.endswith(".md"):
            text = f"# {path}\n\n```{Path(path).suffix.lstrip('.')}\n{text}\n```\n"
        files.append(File.generated(config, page_of(path), content=text))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Return the text of a page as Python-Markdown needs it."""
    if page.file.src_uri == "index.md":
        page.meta["hide"] = ["navigation"]
    elif "\n## " not in markdown:
        page.meta["hide"] = ["toc"]
    origin = _origins().get(page.file.src_uri, f"docs/{page.file.src_uri}")
    return fitted(markdown, origin)


@cache
def _origins() -> dict[str, str]:
    return {page_of(path): path for path in outside()}

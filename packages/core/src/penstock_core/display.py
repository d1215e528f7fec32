"""Short representations of objects for ``repr`` and notebooks: on one line, without secrets, and
without errors."""

from __future__ import annotations

import contextlib
import reprlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import wraps
from itertools import islice
from typing import Any, Final, TypeVar

from msgspec import Struct
from msgspec.structs import fields

from penstock_core.printable import on_one_line
from penstock_core.vocabulary.uris import shown

T = TypeVar("T")

TEXT_SHOWN: Final = 80
"""Maximum number of characters of a value that is shown."""
ITEMS_SHOWN: Final = 8
"""Maximum number of shown items of a list or dictionary."""
ROWS_SHOWN: Final = 20
"""Maximum number of shown rows of a table."""


class _Short(reprlib.Repr):
    """Shortens values before it converts them, so that a large value costs nothing."""

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel = 3
        self.maxstring = self.maxother = self.maxlong = TEXT_SHOWN
        self.maxlist = self.maxtuple = self.maxset = self.maxfrozenset = ITEMS_SHOWN

    def repr1(self, value: object, level: int) -> str:
        if isinstance(value, bytes):
            if len(value) <= TEXT_SHOWN // 2:
                return repr(value)
            return f"{value[: TEXT_SHOWN // 2]!r}... {len(value)}"
        if isinstance(value, dict):
            return self._dict(value, level)
        return super().repr1(value, level)

    def _dict(self, value: dict[Any, Any], level: int) -> str:
        """Return the first items in their order; the base class would sort them."""
        if level <= 0:
            return "{...}"
        items = [
            f"{self.repr1(key, level - 1)}: {self.repr1(item, level - 1)}"
            for key, item in islice(value.items(), ITEMS_SHOWN)
        ]
        return f"{{{', '.join(items)}{', ...' if len(value) > ITEMS_SHOWN else ''}}}"


_short: Final = _Short()


def short(value: object) -> str:
    """Return the ``repr`` of a value on one line, with at most a few hundred characters. If the
    ``repr`` fails, return the name of the value's class."""
    with contextlib.suppress(Exception):
        return on_one_line(_short.repr(value))
    return f"<{type(value).__name__}>"


def safe_repr(method: Callable[[T], str]) -> Callable[[T], str]:
    """Make a ``__repr__`` that never fails, also for an object whose constructor has failed, and
    whose text has one line."""

    @wraps(method)
    def text_of(self: T) -> str:
        with contextlib.suppress(Exception):
            return on_one_line(method(self))
        return f"<{type(self).__name__}, incomplete>"

    return text_of


def safe_html(method: Callable[[T], str]) -> Callable[[T], str]:
    """Make a ``_repr_html_`` that never fails: instead of an error it returns the ``repr``."""

    @wraps(method)
    def table_of(self: T) -> str:
        with contextlib.suppress(Exception):
            return method(self)
        return f"<pre>{_escaped(repr(self))}</pre>"

    return table_of


def html_fields(caption: str, values: Iterable[tuple[str, object]]) -> str:
    """Return an HTML table with a row for each name and value. All texts are escaped."""
    rows = [
        f"<tr><th>{_cell(name)}</th><td>{_cell(value if isinstance(value, str) else short(value))}"
        "</td></tr>"
        for name, value in values
    ]
    return f"<table><caption>{_cell(caption)}</caption>{''.join(rows)}</table>"


def html_rows(caption: str, names: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return an HTML table with a column for each of ``names``. All texts are escaped."""
    head = "".join(f"<th>{_cell(name)}</th>" for name in names)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(short(value))}</td>' for value in row)}</tr>" for row in rows
    )
    return f"<table><caption>{_cell(caption)}</caption><tr>{head}</tr>{body}</table>"


def html_info(info: Struct) -> str:
    """Return an HTML table of the fields of a description. Fields of structs in it are shown if
    they differ from their defaults; deprecated fields and secrets of URIs are left out."""
    return html_fields(type(info).__name__, _fields_of(info, ""))


def _fields_of(info: Struct, prefix: str) -> Iterator[tuple[str, object]]:
    """Yield the fields that are shown, with the names of nested ones after ``prefix``."""
    for field in fields(info):
        value = getattr(info, field.name)
        if isinstance(value, Struct):
            yield from _fields_of(value, f"{prefix}{field.name}.")
        elif field.name != "pending" and not (prefix and value == field.default):
            is_uri = isinstance(value, str) and "://" in value
            yield f"{prefix}{field.name}", shown(value) if is_uri else value


def _escaped(text: str) -> str:
    """Return a text in which HTML has no meaning."""
    import html  # here, because it reads a table of 2,000 names, and only notebooks show HTML

    return html.escape(text)


def _cell(text: str) -> str:
    """Return a text on one line, escaped for HTML."""
    line = on_one_line(text)
    return _escaped(line if len(line) <= 4 * TEXT_SHOWN else f"{line[: 4 * TEXT_SHOWN]}...")

"""Reads the XML export of a realm of Universal Messaging into a tree of elements.

The file is input from outside: declarations of a document type, and with them all entities, are
refused, and depth and number of elements are bounded while it is parsed.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from typing import Final
from xml.parsers import expat

from msgspec import Struct

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.nesting import NESTING_MAX

ELEMENTS_MAX: Final = 1_000_000
"""Maximum number of elements of a file."""
_ROOT: Final = "nirvanarealm"
_INTEGER: Final = re.compile(r"[+-]?[0-9]{1,19}")


class Element(Struct, kw_only=True):
    """An element, with names in lower case: versions of Universal Messaging differ in them."""

    tag: str
    name_in_file: str
    line: int
    attributes: Mapping[str, str]
    children: list[Element] = []

    def text(self, *names: str) -> str:
        """Return the value of the first attribute of these names that exists; empty if none
        does."""
        return next((self.attributes[name] for name in names if name in self.attributes), "")

    def truth(self, *names: str) -> bool:
        """Return whether the first existing attribute of these names is ``true``, ``1`` or
        ``yes``."""
        return self.text(*names).strip().lower() in ("true", "1", "yes")

    def integer(self, name: str) -> int | None:
        """Return the number of an attribute; None if it is absent or not a whole number of at most
        19 digits."""
        text = self.text(name).strip()
        return int(text) if _INTEGER.fullmatch(text) else None

    def entries(self) -> Iterator[Element]:
        """Yield the elements below, without the ``...Set`` elements that only group them."""
        for child in self.children:
            if child.tag.endswith("set"):
                yield from child.entries()
            else:
                yield child


def read_realm_xml(content: bytes, file: str) -> Element:
    """Return the root element of an exported realm. Raises ``InvalidArgument`` with the line if the
    file is not an exported realm, or exceeds a bound."""
    return _Parsing(file).parse(content)


class _Parsing:
    def __init__(self, file: str) -> None:
        self._file = file
        self._parser = expat.ParserCreate()
        self._parser.StartDoctypeDeclHandler = self._refuse_declaration
        self._parser.StartElementHandler = self._start
        self._parser.EndElementHandler = self._end
        self._root: Element | None = None
        self._open: list[Element] = []
        self._count = 0

    def parse(self, content: bytes) -> Element:
        try:
            self._parser.ParseFile(io.BytesIO(content))
        except (expat.ExpatError, ValueError, LookupError) as error:
            raise InvalidArgument(f"{self._file}: this is not XML: {error}") from error
        assert self._root is not None  # expat refuses a document without an element
        return self._root

    def _error(self, message: str) -> InvalidArgument:
        return InvalidArgument(f"{self._file}:{self._parser.CurrentLineNumber}: {message}")

    def _refuse_declaration(self, *declaration: object) -> None:
        raise self._error(
            f"a document type ({declaration[0]}) is declared; an exported realm has none, and "
            "entities are not allowed"
        )

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        if self._root is None and name.lower() != _ROOT:
            raise self._error(f"the root is {name:.80}; an exported realm has NirvanaRealm")
        self._count += 1
        if self._count > ELEMENTS_MAX:
            raise self._error(f"the file has more than {ELEMENTS_MAX:,} elements")
        if len(self._open) >= NESTING_MAX:
            raise self._error(f"elements are nested too deep; at most {NESTING_MAX} are allowed")
        element = Element(
            tag=name.lower(),
            name_in_file=name,
            line=self._parser.CurrentLineNumber,
            attributes={key.lower(): value for key, value in attributes.items()},
        )
        if self._open:
            self._open[-1].children.append(element)
        else:
            self._root = element
        self._open.append(element)

    def _end(self, name: str) -> None:
        del name
        self._open.pop()

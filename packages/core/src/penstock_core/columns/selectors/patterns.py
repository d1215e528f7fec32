"""LIKE patterns, compiled to the cheapest equivalent search (SEM F1).

A pattern consists of pieces with ``%`` between them. It is enough to find each piece at its
leftmost place after the preceding piece, so one pass over a text decides, regardless of the number
of wildcards. Arrow does this for small patterns, by an automaton. The automaton of n ``_`` in a
piece can have 2ⁿ states, and is then a hundred times as slow, so other patterns are searched here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from functools import reduce
from typing import Any, Final

import numpy as np
import pyarrow as pa
from msgspec import Struct

from penstock_core.columns.schema import compute as pc
from penstock_core.columns.selectors.typed_columns import Column

_ANY: Final = "%"
_ONE: Final = "_"
WILDCARDS_MAX: Final = 100
"""Maximum number of wildcards in a pattern of a new selector."""
_CHARACTERS_PER_CHECK: Final = 1 << 20
"""Number of characters, or of bytes if Arrow searches, between two calls of ``check``."""
_AUTOMATON_ANY_MAX: Final = 8
"""Maximum number of ``%`` in a pattern that an automaton searches for."""
_AUTOMATON_ONE_MAX: Final = 8
"""Maximum number of ``_`` in a pattern that an automaton searches for."""
_AUTOMATON_ONE_OF_PIECE_MAX: Final = 4
"""Maximum number of ``_`` in a piece of a pattern that an automaton searches for. Usual texts take
3 ns per byte. Of random patterns within these limits, the slowest one took 130 ns per byte of its
worst text."""
_AUTOMATON_TEXT_MAX: Final = 256
"""Maximum number of bytes of fixed text in a pattern that an automaton searches for. The automaton
is built for each batch, in a time that grows with the pattern: at most 70 µs."""
_TRIES: Final = 32
"""Number of candidate places of a piece that are compared one by one. After this number of
mismatches, whole blocks of positions are compared in one step."""
_PLACES_AT_ONCE: Final = 1 << 16
"""Number of positions that are compared in one step."""
_CHARACTERS_COMPARED: Final = 64
"""Number of characters that are compared at all places of a block between two calls of
``check``."""

Part = str | None
"""A piece of fixed text, or a wildcard: ``""`` for any text, None for any one character."""
Check = Callable[[], None]
"""Called during a search; raises to stop it."""


def unlimited() -> None:
    """Never stop the search."""


def search(pattern: str, escape: str = "") -> Callable[[Column, Check], Column]:
    """Return a function that returns which texts match ``pattern``; null stays null."""
    match parts(pattern, escape):
        case []:
            return lambda texts, _: pc.equal(texts, pa.scalar(""))
        case [str(text)] if text:
            exact = pa.scalar(text)
            return lambda texts, _: pc.equal(texts, exact)
        case [""]:
            # `%` matches every text, also the empty one; the comparison keeps nulls.
            return lambda texts, _: pc.greater_equal(texts, pa.scalar(""))
        case [str(text), ""] if text:
            return lambda texts, _: pc.starts_with(texts, text)
        case ["", str(text)] if text:
            return lambda texts, _: pc.ends_with(texts, text)
        case ["", str(text), ""] if text:
            return lambda texts, _: pc.match_substring(texts, text)
        case [str(first), "", str(last)] if first and last:
            return _between(first, last)
        case pattern_parts if _fits_automaton(pattern_parts):
            return Automaton(pattern_parts).search
        case pattern_parts:
            return Walk(pattern_parts).search


def wildcards(pattern: str, escape: str = "") -> int:
    """Return the number of wildcards in a pattern; adjacent ``%`` count as one."""
    return sum(not part for part in parts(pattern, escape))


def search_work(pattern: str, escape: str = "") -> int:
    """Return the approximate cost of a search, relative to the cost of one comparison.

    The cost is one for each wildcard, and more for long text around ``_`` after a ``%``, which is
    compared at every place of the searched text.
    """
    pattern_parts = parts(pattern, escape)
    # The last piece can only match at the end of a text; an automaton tries it everywhere all the
    # same.
    end = None if _fits_automaton(pattern_parts) else -1
    broken = _broken(_pieces(pattern_parts)[1:end])
    searched = sum(len(run) for piece_runs in broken for run in piece_runs)
    return 1 + wildcards(pattern, escape) + searched // _CHEAP


def search_row_bytes(pattern: str, escape: str = "") -> int:
    """Return the approximate fixed cost of a search per text, as the number of bytes that a
    comparison reads in the same time.

    The cost is 0 if Arrow does the whole search; otherwise texts are searched one by one.
    """
    if not isinstance(getattr(search(pattern, escape), "__self__", None), Walk):
        return 0
    broken = _broken(_pieces(parts(pattern, escape))[1:-1])
    return _ROW_BYTES + len(broken) * _BROKEN_ROW_BYTES


_CHEAP: Final = 4
"""Number of characters that can be compared at every place at the cost of one comparison."""
_ROW_BYTES: Final = 1 << 10
"""Fixed cost of one text that is searched in Python, as the number of bytes that a comparison reads
in the same time."""
_BROKEN_ROW_BYTES: Final = 16 << 10
"""Fixed cost of one text for each piece that single-character wildcards break into runs, in bytes,
because such a piece may partly match at each position of the text."""


def _fits_automaton(pattern_parts: Sequence[Part]) -> bool:
    """Return True if an automaton finds the pattern fast in any text."""
    ones = [piece.count(None) for piece in _pieces(pattern_parts)]
    return (
        len(ones) <= _AUTOMATON_ANY_MAX + 1
        and max(ones) <= _AUTOMATON_ONE_OF_PIECE_MAX
        and sum(ones) <= _AUTOMATON_ONE_MAX
        and len("".join(filter(None, pattern_parts)).encode()) <= _AUTOMATON_TEXT_MAX
    )


def _broken(pieces: Sequence[Sequence[Part]]) -> list[list[str]]:
    """Return the runs of fixed text of each piece that ``_`` breaks into several runs."""
    runs_by_piece = [[run for run in piece if run] for piece in pieces]
    return [runs for runs in runs_by_piece if len(runs) > 1]


def _pieces(pattern_parts: Sequence[Part]) -> list[list[Part]]:
    """Return the parts between the ``%``."""
    pieces: list[list[Part]] = [[]]
    for part in pattern_parts:
        if part == "":
            pieces.append([])
        else:
            pieces[-1].append(part)
    return pieces


def parts(pattern: str, escape: str = "") -> list[Part]:
    """Return the fixed text and wildcards of ``pattern``, with adjacent ones merged."""
    pattern_parts: list[Any] = []
    escaped = False
    for character in pattern:
        if escape and character == escape and not escaped:
            escaped = True
            continue
        if character == _ONE and not escaped:
            pattern_parts.append(None)
        elif character == _ANY and not escaped:
            if pattern_parts[-1:] != [""]:
                pattern_parts.append("")
        elif pattern_parts and pattern_parts[-1]:
            pattern_parts[-1] += character
        else:
            pattern_parts.append(character)
        escaped = False
    return pattern_parts


def _between(first: str, last: str) -> Callable[[Column, Check], Column]:
    """Return the search for texts that begin with ``first`` and end with ``last``."""
    # In a shorter text the beginning and the end would share characters.
    least = len(first.encode()) + len(last.encode())

    def find(texts: Column, check: Check) -> Column:
        ends = pc.and_(pc.starts_with(texts, first), pc.ends_with(texts, last))
        return pc.and_(ends, pc.greater_equal(pc.binary_length(texts), least))

    return find


class Automaton:
    """A search by Arrow, which compiles a regular expression into an automaton that reads each
    character once."""

    def __init__(self, pattern_parts: Sequence[Part]) -> None:
        wildcard_expressions = {None: ".", "": ".*"}
        # A `%` at an end of the pattern leaves the expression open there: `.*` would read the rest
        # of each text.
        first = 1 if pattern_parts[:1] == [""] else 0
        last = len(pattern_parts) - (1 if pattern_parts[-1:] == [""] else 0)
        body = "".join(
            re.escape(part) if part else wildcard_expressions[part]
            for part in pattern_parts[first:last]
        )
        begin, end = "" if first else "^", "" if last < len(pattern_parts) else "$"
        # Without the flag, `.` would match no line feed.
        self._expression = f"(?s){begin}{body}{end}"

    def search(self, texts: Column, check: Check) -> Column:
        """Return which texts match, with null for null. ``check`` may stop the search."""
        if isinstance(texts, pa.Scalar) or texts.nbytes <= _CHARACTERS_PER_CHECK:
            return pc.match_substring_regex(texts, self._expression)
        rows = max(1, len(texts) * _CHARACTERS_PER_CHECK // texts.nbytes)
        matches = []
        for begin in range(0, len(texts), rows):
            check()
            matches.append(pc.match_substring_regex(texts.slice(begin, rows), self._expression))
        return pa.concat_arrays(matches)


class _Piece(Struct, frozen=True):
    """The part between two ``%``: runs of fixed text, and single-character wildcards elsewhere."""

    runs: tuple[tuple[int, str], ...]
    """Offset and text of each run, longest first."""
    size: int
    """Length in characters."""

    @classmethod
    def of_parts(cls, pattern_parts: Sequence[Part]) -> _Piece:
        """Return the piece that consists of these parts."""
        runs, size = [], 0
        for part in pattern_parts:
            if part is not None:
                runs.append((size, part))
            size += 1 if part is None else len(part)
        # The longest run is probably the rarest, so that searching for it skips most text.
        runs.sort(key=lambda run: -len(run[1]))
        return cls(tuple(runs), size)

    def fits(self, text: str, start: int) -> bool:
        """Whether the piece matches at index ``start``."""
        return all(text.startswith(run, start + offset) for offset, run in self.runs)

    def find(self, text: str, start: int, end: int, check: Check) -> int:
        """Return the first index from ``start`` where the piece matches, ending by ``end``; -1 if
        none."""
        last = end - self.size
        if not self.runs:
            return start if start <= last else -1
        (offset, longest), *others = self.runs
        tries = 0
        while start <= last:
            longest_start = text.find(longest, start + offset, last + offset + len(longest))
            if longest_start < 0:
                return -1
            start = longest_start - offset
            if all(text.startswith(run, start + begin) for begin, run in others):
                return start
            start += 1
            tries += 1
            if tries == _TRIES:
                return self._find_at_once(text, start, last, check)
        return -1

    def _find_at_once(self, text: str, start: int, last: int, check: Check) -> int:
        """Return the result of :meth:`find`, by comparing each character of the piece at many
        places at once.

        In a text that partly matches at each position, :meth:`find` would need a call for each
        position.
        """
        for begin in range(start, last + 1, _PLACES_AT_ONCE):
            count = min(_PLACES_AT_ONCE, last + 1 - begin)
            block = text[begin : begin + count + self.size - 1]
            # UTF-32 has four bytes for each character, so its words are the characters.
            codes = np.frombuffer(block.encode("utf-32-le"), dtype=np.uint32)
            fits = np.ones(count, dtype=np.bool_)
            for index, (offset, code) in enumerate(self.characters):
                if not index % _CHARACTERS_COMPARED:
                    check()
                    if not fits.any():
                        break
                fits &= codes[offset : offset + count] == code
            # argmax() returns 0 also if no place fits.
            first = int(fits.argmax())
            if fits[first]:
                return begin + first
        return -1

    @property
    def characters(self) -> Iterator[tuple[int, int]]:
        """Offset and code of each character, the longest run first."""
        for begin, run in self.runs:
            for offset, character in enumerate(run, start=begin):
                yield offset, ord(character)


class Walk:
    """A search for several pieces, one after the other."""

    def __init__(self, pattern_parts: list[Part]) -> None:
        pieces = _pieces(pattern_parts)
        first, *following_pieces = map(_Piece.of_parts, pieces)
        self._first = first
        self._last = following_pieces.pop() if following_pieces else None
        """The last piece; None if the pattern has no ``%``, so that the first piece is the whole
        pattern."""
        self._middle = [middle_piece for middle_piece in following_pieces if middle_piece.size]
        self._least = sum(
            middle_piece.size
            for middle_piece in (first, *following_pieces, self._last or _Piece((), 0))
        )
        texts = [run for part in pieces for run in part if run]
        self._longest = max(texts, key=len, default="")

    def search(self, texts: Column, check: Check) -> Column:
        """Return which texts match, with null for null. ``check`` may stop the search."""
        if isinstance(texts, pa.Scalar):
            return self.search(pa.array([texts.as_py()], pa.string()), check)[0]
        mask = pc.greater_equal(pc.utf8_length(texts), self._least)
        if self._longest:  # Arrow quickly excludes most texts
            mask = pc.and_(mask, pc.match_substring(texts, self._longest))
        hits = np.asarray(
            mask.fill_null(fill_value=False).to_numpy(zero_copy_only=False), dtype=np.bool_
        )
        rows = np.flatnonzero(hits)
        fits = np.zeros(len(hits), dtype=np.bool_)
        seen = 0
        for row, text in zip(rows.tolist(), texts.take(pa.array(rows)).to_pylist(), strict=True):
            fits[row] = self.fits(text, check)
            seen += len(text)
            if seen > _CHARACTERS_PER_CHECK:
                seen = 0
                check()
        absent = texts.is_null().to_numpy(zero_copy_only=False) if texts.null_count else None
        return pa.array(fits, mask=absent)

    def fits(self, text: str, check: Check) -> bool:
        """Whether the text begins with the first piece and ends with the last piece, and has the
        other pieces in order between them."""
        size = len(text)
        if not self._first.fits(text, 0):
            return False
        if self._last is None:
            return size == self._first.size
        # search() calls this only for texts as long as all pieces together, so that the first and
        # the last piece do not overlap.
        end = size - self._last.size
        if not self._last.fits(text, end):
            return False

        # After a missing piece the result stays -1, because reduce() cannot stop early.
        def end_of_next(start: int, part: _Piece) -> int:
            piece_start = -1 if start < 0 else part.find(text, start, end, check)
            return -1 if piece_start < 0 else piece_start + part.size

        return reduce(end_of_next, self._middle, self._first.size) >= 0

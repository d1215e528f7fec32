"""Serves the console's files from the folder ``console`` next to this module."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from typing import Final, NamedTuple

import xxhash

ROOT: Final = Path(__file__).with_name("console")
INDEX: Final = "index.html"
_GZIP: Final = re.compile(r"(?:^|,)\s*gzip\s*(?:,|$|;\s*q=(?!0(?:\.0*)?\s*(?:,|$)))", re.IGNORECASE)
"""Matches the header Accept-Encoding of a client that accepts gzip; a weight of 0 refuses it."""
_COMPRESSED_SHARE: Final = 0.9
"""Largest share of a file's size that its compressed form may have."""
_PART: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]*")
"""A part of a path. It has no dot at the start, so neither ``..`` nor hidden files match."""
_TYPES: Final = {
    ".css": "text/css; charset=utf-8",
    ".html": "text/html; charset=utf-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".md": "text/plain; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".png": "image/png",
    ".svg": "image/svg+xml",
    ".txt": "text/plain; charset=utf-8",
    ".webmanifest": "application/manifest+json",
    ".woff2": "font/woff2",
}
"""Media types by extension. Other files in the folder are not served."""


_PAGE: Final = [
    (
        "content-security-policy",
        "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'; "
        "object-src 'none'",
    ),
    ("cache-control", "no-cache"),
]


class File(NamedTuple):
    """The content of a file."""

    data: bytes
    type: str
    tag: str
    """Entity tag, which changes with the content and its encoding."""
    encoding: str = ""
    """Content encoding of ``data``; empty if it is the file as stored."""

    @property
    def headers(self) -> list[tuple[str, str]]:
        """The headers of an answer with the file."""
        headers = [("etag", self.tag), ("vary", "accept-encoding"), *_PAGE]
        return [*headers, ("content-encoding", self.encoding)] if self.encoding else headers


def _compressed(file: File) -> File:
    """Return the file compressed with gzip, or unchanged where that saves little, as in images."""
    # The time of compression is left out, so that equal content has equal bytes, as its tag claims.
    data = gzip.compress(file.data, mtime=0)
    if len(data) > _COMPRESSED_SHARE * len(file.data):
        return file
    return File(data, file.type, tag=f'{file.tag[:-1]}-gzip"', encoding="gzip")


class Files:
    """A cache of the files. A file is read at its first request and after each change."""

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._cache: dict[Path, tuple[tuple[int, int], File, File]] = {}
        """Time of change and size, the file, and the file compressed, by path."""

    def find(self, raw_path: str, accept_encoding: str = "") -> File | None:
        """Return the file at a request's path; None if no such file is served. It is compressed if
        the header Accept-Encoding allows gzip.

        A path may contain only plain names. Percent-encoding, ``..`` and symbolic links are not
        followed, so a request cannot leave the folder.
        """
        parts = [part for part in raw_path.split("/") if part] or [INDEX]
        if not all(_PART.fullmatch(part) for part in parts):
            return None
        path = self._root.joinpath(*parts)
        kind = _TYPES.get(path.suffix)
        if kind is None or path.is_symlink() or not path.is_file():
            return None
        stat = path.stat()
        stamp = stat.st_mtime_ns, stat.st_size
        entry = self._cache.get(path)
        if entry is None or entry[0] != stamp:
            data = path.read_bytes()
            file = File(data, kind, f'"{xxhash.xxh3_64_hexdigest(data)}"')
            entry = stamp, file, _compressed(file)
            self._cache[path] = entry
        return entry[2] if _GZIP.search(accept_encoding) else entry[1]

"""Folders at the root of the HTTP port whose files other packages serve.

A package registers a :class:`FileDoor` under the entry point group ``penstock.file_doors``, by the
name of the folder. Clients can only read the files, completely or a range of bytes. The door itself
checks the rights of a client, because such clients do not sign in as clients of the API do.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from penstock_core.vocabulary.errors import PenstockError
from penstock_server.parts import registered

if TYPE_CHECKING:
    from penstock_core.access.rights import Principal
    from penstock_server.frontends.http.http_service import HttpService

GROUP: Final = "penstock.file_doors"
PART_BYTES: Final = 1 << 20
"""Largest number of bytes that are read and sent at once."""
_RANGE: Final = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")


class FileRequest(NamedTuple):
    """A request for a file behind a door."""

    service: HttpService
    method: str
    path: str
    """The path as the client sent it, percent-encoded."""
    query: str
    headers: Mapping[str, str]


class ByteRange(NamedTuple):
    """The bytes of a file that a client requests."""

    start: int
    end: int
    """The last byte plus one."""
    is_part: bool = True
    """Whether the client requests a range; otherwise it gets the whole file."""


class FileAnswer(NamedTuple):
    """The answer to a request for a file."""

    status: int
    headers: list[tuple[str, str]]
    start: int
    end: int
    """The last byte to send, plus one."""


class ServedFile(NamedTuple):
    """A file that the client may read."""

    size: int
    """Size of the file in bytes."""
    tag: str
    """Value of ``ETag``, with its quotes. A file never changes."""
    modified_us: int
    """Time for the header ``Last-Modified``, in microseconds since 1970: the creation of the file,
    which never changes afterwards."""
    read: Callable[[int, int], Awaitable[bytes]]
    """Called with an offset and a length in bytes; returns these bytes of the file."""
    reader: Principal
    """The user whose limits the request counts for."""

    def answer_to(self, range_header: str) -> FileAnswer:
        """Return the answer to a request with this ``Range`` header."""
        part = range_of(range_header, self.size)
        headers = [
            ("etag", self.tag),
            ("last-modified", formatdate(self.modified_us // 1_000_000, usegmt=True)),
            ("accept-ranges", "bytes"),
            ("cache-control", "private"),
        ]
        if not part.is_part:
            return FileAnswer(200, headers, part.start, end=part.end)
        if part.start == part.end:
            headers.append(("content-range", f"bytes */{self.size}"))
            return FileAnswer(416, headers, part.start, end=part.end)
        headers.append(("content-range", f"bytes {part.start}-{part.end - 1}/{self.size}"))
        return FileAnswer(206, headers, part.start, end=part.end)


class FileDoor(Protocol):
    """A folder of files."""

    async def find(self, request: FileRequest) -> ServedFile:
        """Return the file. Raises ``AccessDenied``, ``AuthenticationFailed``,
        ``NameDoesNotExist``."""
        ...

    def refusal(
        self, request: FileRequest, status: int, error: PenstockError
    ) -> tuple[int, str, bytes]:
        """Return the status, content type and body of the answer to a refused request. ``status``
        is the status that the API uses for ``error``."""
        ...


def file_door(path: str) -> FileDoor | None:
    """Return the handler for the first folder of a URL path; None if no installed package has
    registered this folder. The package's code is loaded at the first request."""
    part = registered(GROUP).get(path[1:].partition("/")[0])
    return None if part is None else part.load()


def range_of(header: str, size: int) -> ByteRange:
    """Return the range of a ``Range`` header within a file of ``size`` bytes. The range is empty if
    the file has no byte in it.

    A header that is malformed or requests several ranges is ignored, as RFC 9110 allows.
    """
    match = _RANGE.fullmatch(header.strip())
    whole_file = ByteRange(0, size, is_part=False)
    if match is None or match[0] == "bytes=-":
        return whole_file
    first, last = match[1], match[2]
    if not first:  # "bytes=-500" requests the last 500 bytes of the file
        return ByteRange(max(0, size - int(last)), size)
    start = int(first)
    if last and int(last) < start:
        return whole_file
    return ByteRange(start, max(start, min(int(last) + 1, size) if last else size))

"""A small object store with the part of S3 that Arrow's client needs; it can refuse requests."""

from __future__ import annotations

import hashlib
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

LIST_MAX = 3
"""Names in one answer to a list request: few, so that clients have to request the rest."""


class ObjectStore:
    """Every bucket exists, and every client has access."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        """Contents of the objects, by ``bucket/name``."""
        self.requests: list[tuple[str, str, str]] = []
        """Method, ``bucket/name`` (or the prefix of a list request) and range of all requests."""
        self.refuses = False
        """Whether all requests are answered with ``AccessDenied``."""
        self.part_refused = 0
        """The number of the part of a large object whose upload is refused; 0: none."""
        self.url = ""

    def uri(self, place: str) -> str:
        """Return the URI of ``place`` (``bucket/name``) for ``pyarrow.fs``."""
        address = self.url.removeprefix("http://").replace(":", "%3A")
        return (
            f"s3://somebody:very-secret@{place}?endpoint_override={address}&scheme=http&region=here"
        )

    def requests_of(self, method: str, part: str) -> list[tuple[str, str]]:
        """Return name and range of the requests with this method whose name contains ``part``."""
        spans = [(name, span) for did, name, span in self.requests if did == method]
        return [(name, span) for name, span in spans if part in name]


@contextmanager
def object_store() -> Iterator[ObjectStore]:
    store = ObjectStore()

    class Handler(_Handler):
        objects = store

    class Server(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Ignore errors of connections that clients have closed."""

    with Server(("127.0.0.1", 0), Handler) as server:
        store.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=lambda: server.serve_forever(0.01))
        thread.start()
        try:
            yield store
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    objects: ObjectStore
    uploads: dict[str, dict[int, bytes]] = {}  # noqa: RUF012 - of all connections

    def _begin(self) -> tuple[str, dict[str, str]]:
        parts = urlsplit(self.path)
        query = {
            key: values[0] for key, values in parse_qs(parts.query, keep_blank_values=True).items()
        }
        name = unquote(parts.path).lstrip("/")
        what = query.get("prefix", name) if self.command == "GET" and "prefix" in query else name
        self.objects.requests.append((self.command, what, self.headers.get("Range", "")))
        return name, query

    def do_HEAD(self) -> None:
        self._get(with_body=False)

    def do_GET(self) -> None:
        self._get(with_body=True)

    def _get(self, *, with_body: bool) -> None:
        name, query = self._begin()
        if self.objects.refuses:
            return self._answer(403, _error("AccessDenied"), with_body=with_body)
        if "list-type" in query:
            return self._answer(200, self._listed(name.strip("/"), query))
        if "/" not in name.rstrip("/"):
            return self._answer(200)
        content = self.objects.objects.get(name)
        if content is None:
            return self._answer(404, _error("NoSuchKey"), with_body=with_body)
        total, status, more = len(content), 200, {}
        if byte_range := re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", "")):
            first, last = int(byte_range[1]), min(int(byte_range[2] or total - 1), total - 1)
            content, status = content[first : last + 1], 206
            more = {"Content-Range": f"bytes {first}-{last}/{total}"}
        self._answer(status, content, with_body=with_body, **more)

    def do_PUT(self) -> None:
        name, query = self._begin()
        body = self._body()
        if self.objects.refuses:
            return self._answer(403, _error("AccessDenied"))
        if "uploadId" in query:
            if int(query["partNumber"]) == self.objects.part_refused:
                return self._answer(403, _error("AccessDenied"))
            self.uploads[query["uploadId"]][int(query["partNumber"])] = body
        elif "/" in name.rstrip("/"):
            self.objects.objects[name] = body
        self._answer(200, ETag=f'"{hashlib.sha256(body).hexdigest()}"')

    def do_POST(self) -> None:
        name, query = self._begin()
        self._body()
        if self.objects.refuses:
            return self._answer(403, _error("AccessDenied"))
        if "uploads" in query:
            upload = f"{len(self.uploads)}-{name}"
            self.uploads[upload] = {}
            return self._answer(200, _xml("InitiateMultipartUploadResult", UploadId=upload))
        parts = self.uploads[query["uploadId"]]
        self.objects.objects[name] = b"".join(parts[number] for number in sorted(parts))
        self._answer(200, _xml("CompleteMultipartUploadResult", Key=name, ETag='"whole"'))

    def do_DELETE(self) -> None:
        name, _ = self._begin()
        if self.objects.refuses:
            return self._answer(403, _error("AccessDenied"))
        self.objects.objects.pop(name, None)
        self._answer(204)

    def _listed(self, bucket: str, query: dict[str, str]) -> bytes:
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        after = query.get("continuation-token", query.get("start-after", ""))
        limit = min(LIST_MAX, int(query.get("max-keys", LIST_MAX)))
        files: dict[str, int] = {}
        folders: dict[str, None] = {}
        for name in sorted(self.objects.objects):
            key = name.removeprefix(f"{bucket}/")
            if key == name or not key.startswith(prefix):
                continue
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                key = prefix + rest.partition(delimiter)[0] + delimiter
            if key <= after or key in folders:
                continue
            if len(files) + len(folders) == limit:
                more = max([*files, *folders])
                break
            if key.endswith(delimiter or "\0"):
                folders[key] = None
            else:
                files[key] = len(self.objects.objects[name])
        else:
            more = ""
        contents = "".join(
            f"<Contents><Key>{escape(object_key)}</Key><Size>{size}</Size>"
            "<LastModified>2013-01-01T00:00:00.000Z</LastModified></Contents>"
            for object_key, size in files.items()
        ) + "".join(
            f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>"
            for folder in folders
        )
        elements = {"Name": bucket, "KeyCount": f"{len(files) + len(folders)}"}
        elements["IsTruncated"] = "true" if more else "false"
        if more:
            elements["NextContinuationToken"] = more
        return _xml("ListBucketResult", contents, **elements)

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "") == "chunked":
            body = self._chunks()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" in self.headers.get("Content-Encoding", ""):
            body = _unpacked(body)
        return body

    def _chunks(self) -> bytes:
        parts = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            parts.append(self.rfile.read(size))
            self.rfile.readline()
        while self.rfile.readline().strip():
            pass
        return b"".join(parts)

    def _answer(
        self, status: int, content: bytes = b"", *, with_body: bool = True, **headers: str
    ) -> None:
        self.send_response(status)
        self.send_header("Content-Length", f"{len(content)}")
        self.send_header("Last-Modified", "Tue, 01 Jan 2013 00:00:00 GMT")
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if with_body:
            self.wfile.write(content)

    def log_message(self, format: str, *arguments: Any) -> None:
        """Write no log."""


def _unpacked(body: bytes) -> bytes:
    """Return the data in a body of the encoding ``aws-chunked``."""
    parts: list[bytes] = []
    offset = 0
    while True:
        end = body.index(b"\r\n", offset)
        size = int(body[offset:end].split(b";")[0], 16)
        if not size:
            return b"".join(parts)
        parts.append(body[end + 2 : end + 2 + size])
        offset = end + 2 + size + 2


def _error(code: str) -> bytes:
    return _xml("Error", Code=code, Message=code)


def _xml(root: str, inside: str = "", **elements: str) -> bytes:
    inside += "".join(f"<{key}>{escape(value)}</{key}>" for key, value in elements.items())
    return f'<?xml version="1.0" encoding="UTF-8"?><{root}>{inside}</{root}>'.encode()

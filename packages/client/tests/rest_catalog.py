"""A REST catalog of Iceberg tables over that of SQLite, which may lose its answers to commits."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.rest import CreateTableRequest
from pyiceberg.exceptions import (
    CommitFailedException,
    NoSuchNamespaceError,
    NoSuchTableError,
)
from pyiceberg.partitioning import UNPARTITIONED_PARTITION_SPEC
from pyiceberg.table import CommitTableRequest, Table

from packages.client.tests.catalogs import catalog_in


class RestCatalog(ThreadingHTTPServer):
    """The server. ``statuses`` has the answers to the next commits; 200 or a missing one means the
    true answer."""

    daemon_threads = True

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.catalog: Catalog = catalog_in(folder)
        self.statuses: list[int] = []
        self.moment: Literal["before", "during", "after"] = "after"
        """Point at which a commit fails with a status other than 200: before it is stored,
        afterwards, or before but with the next commit storing it first."""
        self.delayed: list[tuple[list[str], bytes]] = []
        """Commits that the next commit stores first."""
        self.commits = 0
        """Number of requests to commit."""
        self.failing_reads = 0
        """Number of reads of a table that fail after the next failed commit."""
        self.failing_reads_after_commits = 0
        """Number of reads of a table that fail after the next stored commit."""
        self.reads_to_fail = 0
        """Number of the next reads of a table that fail."""
        self.on_commit: Callable[[], None] = lambda: None
        """Called when a request to commit arrives."""
        self.lock = threading.Lock()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


@contextmanager
def serving(folder: Path) -> Iterator[RestCatalog]:
    server = RestCatalog(folder)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: RestCatalog
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_HEAD(self) -> None:
        self._answer_with(self._get)

    def do_GET(self) -> None:
        self._answer_with(self._get)

    def do_POST(self) -> None:
        self._answer_with(self._post)

    def _answer_with(self, act: Any) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        with self.server.lock:
            try:
                status, answer = act(self.path.partition("?")[0].split("/")[2:], body)
            except (NoSuchTableError, NoSuchNamespaceError) as error:
                status, answer = 404, _error(type(error).__name__, str(error), 404)
            except CommitFailedException as error:
                status, answer = 409, _error("CommitFailedException", str(error), 409)
        content = b"" if self.command == "HEAD" else answer.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def _get(self, parts: list[str], body: bytes) -> tuple[int, str]:
        catalog = self.server.catalog
        if parts == ["config"]:
            return 200, json.dumps({"defaults": {}, "overrides": {}})
        if len(parts) == 2:
            return 200, json.dumps(
                {
                    "namespace": [parts[1]],
                    "properties": dict(catalog.load_namespace_properties(parts[1])),
                }
            )
        if self.server.reads_to_fail:
            self.server.reads_to_fail -= 1
            return 503, _error("Failed", "failed by the test", 503)
        return 200, _loaded(catalog.load_table((parts[1], parts[3])))

    def _post(self, parts: list[str], body: bytes) -> tuple[int, str]:
        catalog = self.server.catalog
        if parts == ["namespaces"]:
            namespace = json.loads(body)["namespace"]
            catalog.create_namespace(tuple(namespace))
            return 200, json.dumps({"namespace": namespace, "properties": {}})
        if len(parts) == 3:
            optional = {"location": None, "partition-spec": None, "write-order": None}
            request = CreateTableRequest.model_validate(optional | json.loads(body))
            assert request.stage_create
            transaction = catalog.create_table_transaction(
                (parts[1], request.name),
                request.table_schema,
                location=request.location,
                partition_spec=request.partition_spec or UNPARTITIONED_PARTITION_SPEC,
                properties=request.properties,
            )
            return 200, json.dumps({"metadata": _json(transaction.table_metadata)})
        return self._commit(parts, body)

    def _commit(self, parts: list[str], body: bytes) -> tuple[int, str]:
        server = self.server
        server.commits += 1
        server.on_commit()
        while server.delayed:
            self._stored(*server.delayed.pop(0))
        status = server.statuses.pop(0) if server.statuses else 200
        if status == 200:
            server.reads_to_fail, server.failing_reads_after_commits = (
                server.failing_reads_after_commits,
                0,
            )
            return 200, self._stored(parts, body)
        server.reads_to_fail, server.failing_reads = server.failing_reads, 0
        if server.moment == "after":
            self._stored(parts, body)
        elif server.moment == "during":
            server.delayed.append((parts, body))
        return status, _error("Failed", "failed by the test", status)

    def _stored(self, parts: list[str], body: bytes) -> str:
        """Store a commit, and return the answer."""
        request = CommitTableRequest.model_validate_json(body)
        table: Any = SimpleNamespace(name=lambda: (parts[1], parts[3]))
        response = self.server.catalog.commit_table(table, request.requirements, request.updates)
        return response.model_dump_json(by_alias=True)


def _loaded(table: Table) -> str:
    return json.dumps(
        {"metadata-location": table.metadata_location, "metadata": _json(table.metadata)}
    )


def _json(model: Any) -> Any:
    return json.loads(model.model_dump_json(by_alias=True))


def _error(kind: str, message: str, status: int) -> str:
    return json.dumps({"error": {"message": message, "type": kind, "code": status}})

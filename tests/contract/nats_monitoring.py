"""A monitoring port of a NATS server with answers that a test chooses."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar, Final

import msgspec

Said = Mapping[str, object]

VARZ: Final[Said] = {"server_name": "n0", "version": "2.15.1", "cluster": {"name": "c"}}
JSZ: Final[Said] = {
    "storage": 100,
    "config": {"max_storage": 1_000, "sync_interval": 120_000_000_000, "sync_always": True},
    "meta_cluster": {
        "leader": "n1",
        "cluster_size": 3,
        "replicas": [{"name": "n1"}, {"name": "n2"}],
    },
}
"""Answer to ``/jsz`` of one of three servers with file storage."""


class _Answers(BaseHTTPRequestHandler):
    answers: ClassVar[Mapping[str, Said]] = {}

    def do_GET(self) -> None:
        body = msgspec.json.encode(self.answers[self.path])
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *arguments: object) -> None:
        """Write no log."""


@contextmanager
def monitoring(varz: Said, jsz: Said) -> Iterator[str]:
    """Serve these answers; return the URL."""
    answers = {"/varz": varz, "/jsz?config=true": jsz}
    kind = type("_Saying", (_Answers,), {"answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        serving = threading.Thread(target=server.serve_forever)
        serving.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            serving.join()

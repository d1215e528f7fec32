"""A client that reads a whole channel by its URL, again and again. S20 starts it as a separate
process."""

from __future__ import annotations

import http.client
import sys
from contextlib import AbstractContextManager
from types import MappingProxyType
from typing import Final

import msgspec

from bench.processes import beside

BLOCK_BYTES: Final = 1 << 20
READS: Final = "reading"
"""The line that the process prints once it has the first block."""
MEDIA_TYPES: Final = MappingProxyType(
    {
        "Arrow": "application/vnd.apache.arrow.stream",
        "CSV": "text/csv",
        "NDJSON": "application/x-ndjson",
    }
)


class UrlReadJob(msgspec.Struct, frozen=True):
    """The work of the process."""

    http_port: int
    channel: str
    format: str
    """A key of :data:`MEDIA_TYPES`."""


def reading(job: UrlReadJob) -> AbstractContextManager[None]:
    """Run a process within the block that reads the channel until it is ended."""
    return beside("bench.url_reading", job, READS)


def read_for_ever(job: UrlReadJob) -> None:
    """Read all events, without decoding them, and begin again at the end."""
    has_begun = False
    while True:
        connection = http.client.HTTPConnection("127.0.0.1", job.http_port)
        connection.request(
            "GET",
            f"/api/v1/channels/{job.channel}/events",
            headers={"Accept": MEDIA_TYPES[job.format]},
        )
        with connection.getresponse() as answer:
            if answer.status != http.HTTPStatus.OK:
                raise RuntimeError(answer.read().decode())
            while answer.read(BLOCK_BYTES):
                if not has_begun:
                    has_begun = True
                    print(READS, flush=True)
        connection.close()


if __name__ == "__main__":
    read_for_ever(msgspec.json.decode(sys.argv[1], type=UrlReadJob))

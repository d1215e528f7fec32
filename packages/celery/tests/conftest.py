"""A realm in another process, which the tests of a file share, and connections of kombu."""

from __future__ import annotations

from collections.abc import Iterator
from uuid import uuid4

import pytest
from kombu import Connection

import penstock_celery
from penstock_testing.process import ServerProcess

assert penstock_celery.SCHEMES, "the import has not registered the transport"


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(tmp_path_factory.mktemp("realm")) as running:
        yield running


@pytest.fixture
def url(server: ServerProcess) -> str:
    """The URL of the realm, with a virtual host that only this test uses."""
    return f"{server.url}/{uuid4().hex[:8]}"


@pytest.fixture
def connection(url: str) -> Iterator[Connection]:
    with Connection(url) as opened:
        yield opened

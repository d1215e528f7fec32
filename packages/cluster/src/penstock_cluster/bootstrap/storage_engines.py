"""The storage engines of a cluster, which are selected by the scheme of ``cluster.engine``.

The adapter of an engine and the client of its servers are imported when the engine is opened.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Protocol

from penstock.client.connection.urls import safe
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_core.vocabulary.ports import Clock, EngineInspector, StorageEngine
from penstock_server.settings import ClusterSettings

GROUP: Final = "penstock.engines"
"""Group of the entry points of :class:`EngineKind`; the name of each is a scheme of URLs."""


class EngineKind(Protocol):
    """A kind of storage engine below the nodes of a cluster."""

    async def open(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> StorageEngine:
        """Connect to the servers at ``urls``. Raises ``InvalidArgument`` for settings that are not
        for this engine, and ``Unavailable``."""
        ...

    def inspector(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> EngineInspector:
        """Inspect the servers without being a node. Raises ``InvalidArgument``."""
        ...


class JetStreamKind(EngineKind):
    """Replicated streams of NATS servers."""

    async def open(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> StorageEngine:
        with _client_installed():
            from penstock_cluster.storage.jetstream.engine import JetStreamEngine

            jetstream = JetStreamEngine(
                urls,
                name=settings.name,
                monitors=_monitors(settings.monitors),
                clock=clock,
                offload=asyncio.to_thread,
                tls=engine_tls(settings),
            )
            return await jetstream.open()

    def inspector(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> EngineInspector:
        with _client_installed():
            from penstock_cluster.storage.jetstream.inspection import JetStreamInspector

            return JetStreamInspector(
                urls,
                name=settings.name,
                monitors=_monitors(settings.monitors),
                clock=clock,
                offload=asyncio.to_thread,
                tls=engine_tls(settings),
            )


class PostgresKind(EngineKind):
    """Tables of PostgreSQL with synchronous standbys."""

    async def open(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> StorageEngine:
        _check_no_tls(settings)
        with _client_installed():
            from penstock_cluster.storage.postgres.engine import PostgresEngine

            return PostgresEngine(urls, cluster=settings.name)

    def inspector(
        self, urls: Sequence[str], settings: ClusterSettings, clock: Clock
    ) -> EngineInspector:
        _check_no_tls(settings)
        with _client_installed():
            from penstock_cluster.storage.postgres.inspection import PostgresInspector

            return PostgresInspector(urls, cluster=settings.name)


JETSTREAM: Final = JetStreamKind()
POSTGRES: Final = PostgresKind()


def engine_tls(settings: ClusterSettings) -> ssl.SSLContext | None:
    """Return the TLS context for the servers of a NATS engine; None for the system's default.
    Raises ``InvalidArgument`` for unusable files."""
    authority, certificate = settings.tls_authority, settings.tls_certificate
    if bool(certificate) != bool(settings.tls_key):
        raise InvalidArgument(
            "cluster.tls_certificate and cluster.tls_key belong together: name both, or neither"
        )
    if not (authority or certificate):
        return None
    try:
        context = ssl.create_default_context(cafile=authority or None)
        if certificate:
            context.load_cert_chain(certificate, settings.tls_key)
    except (OSError, ValueError) as error:  # ssl.SSLError is a subclass of OSError
        named = ", ".join(filter(None, (authority, certificate, settings.tls_key)))
        raise InvalidArgument(
            f"cluster.tls_authority, cluster.tls_certificate and cluster.tls_key name files that "
            f"cannot be used ({named}): {error}"
        ) from error
    return context


def _check_no_tls(settings: ClusterSettings) -> None:
    """Raise ``InvalidArgument`` for settings of TLS, which PostgreSQL has in its URL."""
    if settings.tls_authority or settings.tls_certificate or settings.tls_key:
        raise InvalidArgument(
            "cluster.tls_authority, cluster.tls_certificate and cluster.tls_key are for NATS; "
            "PostgreSQL has these files in its URL: ?sslrootcert=FILE&sslcert=FILE&sslkey=FILE"
        )


def _monitors(text: str) -> list[str]:
    """Return the monitoring URLs in a setting. Raises ``InvalidArgument``."""
    urls = [part.strip().rstrip("/") for part in text.split(",") if part.strip()]
    for url in urls:
        if not url.startswith(("http://", "https://")) or "@" in url:
            raise InvalidArgument(
                f"cluster.monitors has {safe(url)!r}; the monitoring of a NATS server looks like "
                f"http://HOST:8222"
            )
    return urls


@contextmanager
def _client_installed() -> Iterator[None]:
    """Raise ``InvalidArgument`` if the client of an engine's servers is not installed."""
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("nats", "asyncpg"):
            raise
        raise InvalidArgument(
            f"a cluster needs the package {error.name}, which is not installed here: pip install "
            "'penstock-realm[cluster]'"
        ) from error

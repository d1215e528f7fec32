"""Sealed history, which a node serves at separate ports while the cluster has no quorum (SEM
N10)."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock_cluster.bootstrap.cluster import open_history
from penstock_cluster.nodes.register_poller import poll_forever
from penstock_cluster.sealed_history import SealedHistory
from penstock_core.api.realm import ClusterInfo
from penstock_core.loggers import logger
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import InvalidArgument, PenstockError
from penstock_core.vocabulary.ports import Registry
from penstock_server.bootstrap import native_listener
from penstock_server.bootstrap.front_end_urls import front_end_url
from penstock_server.frontends.front_end import HTTP, NATIVE, front_end_named
from penstock_server.frontends.http.front_end import http_server
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.access.account_records import ENTRIES_PREFIX, USERS_KEY
from penstock_server.runtime.access.incidents import Incidents
from penstock_server.runtime.access.shared_accounts import ACCESS_PREFIX
from penstock_server.settings import ClusterSettings, Settings

if TYPE_CHECKING:
    from penstock_server.frontends.http.server import HttpServer

POLL_S: Final = 0.2
"""Pause between two checks of the quorum, in seconds."""
RIGHTS_EVERY_S: Final = 60.0
"""Pause between two reads of rights without a notification."""
RETRY_S: Final = 10.0
"""Pause after history could not be served or has become unreadable, in seconds."""

_log = logger("penstock.history")


class LastKnownRights:
    """The last known records of users and rights, for times when the register does not answer."""

    def __init__(self, registry: Registry) -> None:
        self.records: dict[str, bytes] = {}
        self._registry = registry

    async def refresh(self) -> None:
        for key in (USERS_KEY, *await self._registry.list(ENTRIES_PREFIX)):
            record = await self._registry.get(key)
            if record is not None:
                self.records[key] = record.value

    async def follow(self, incidents: Incidents) -> None:
        """Read the records whenever they may have changed, until cancelled."""
        await poll_forever(
            self._registry,
            ACCESS_PREFIX,
            self.refresh,
            incidents=incidents,
            task="history rights",
            every_s=RIGHTS_EVERY_S,
        )


class HistoryServer:
    """Serves sealed history in the process of a node that has ports for it."""

    def __init__(
        self,
        directory: Path,
        settings: Settings,
        identity: Callable[[], str],
        registry: Registry,
        has_quorum: Callable[[], bool],
        certificate: Tls | None,
        incidents: Incidents,
    ) -> None:
        """``directory``, ``settings`` and ``incidents`` are the node's."""
        self._directory = directory
        self._settings = settings
        self._identity = identity
        self._has_quorum = has_quorum
        self._certificate = certificate
        self._incidents = incidents
        self.rights = LastKnownRights(registry)

    async def run(self) -> None:
        """Serve history whenever the quorum is lost, until cancelled. A failure is an incident, and
        serving begins again."""
        while True:
            with self._incidents.barrier("history", ends=()):
                await self._run()
            await asyncio.sleep(RETRY_S)

    async def _run(self) -> None:
        """Follow the rights of users, and serve history each time that the quorum is lost."""
        async with asyncio.TaskGroup() as tasks:
            if self._settings.access.mode != "off":
                await self.rights.refresh()
                tasks.create_task(self.rights.follow(self._incidents))
            # At the start no lease holds yet, which does not mean that the quorum is lost.
            await self._wait_for_quorum(has_quorum=True)
            while True:
                await self._wait_for_quorum(has_quorum=False)
                try:
                    await self._serve()
                except* PenstockError as failures:
                    reason = "; ".join(f"{failure}" for failure in _leaves(failures))
                    _log.warning("history.not_shown", reason=reason)
                    with suppress(TimeoutError):
                        async with asyncio.timeout(RETRY_S):
                            await self._wait_for_quorum(has_quorum=True)

    async def _wait_for_quorum(self, *, has_quorum: bool) -> None:
        while True:
            if self._has_quorum() == has_quorum:
                return
            await asyncio.sleep(POLL_S)

    async def _serve(self) -> None:
        """Serve history until the quorum is back, or a file can no longer be read."""
        file_lost = asyncio.Event()
        history = await open_history(
            self._settings,
            self._directory,
            self._identity(),
            rights=self.rights.records,
            on_failure=file_lost.set,
        )
        realm = history.realm
        realm.cluster = lambda: ClusterInfo(history_us=history.as_of_us)
        history_only = history_settings(self._settings)
        listener = native_listener(realm, history_only, __version__, certificate=self._certificate)
        http = http_server(listener, history_only) if history_only.http.enabled else None
        try:
            async with asyncio.TaskGroup() as tasks:
                ready = asyncio.Event()
                tasks_to_cancel = [
                    tasks.create_task(history.run(), name="history"),
                    tasks.create_task(listener.run(ready), name="history listener"),
                ]
                await ready.wait()
                if http is not None:
                    tasks_to_cancel.append(tasks.create_task(http.run(), name="history http"))
                try:
                    urls = await self._listen(listener, http, history_only)
                    _log.warning("history.shown", **urls, **_log_fields(history))
                    quorum_back = tasks.create_task(self._wait_for_quorum(has_quorum=True))
                    file_failed = tasks.create_task(_wait_for(file_lost))
                    await asyncio.wait(
                        [quorum_back, file_failed], return_when=asyncio.FIRST_COMPLETED
                    )
                    tasks_to_cancel += [quorum_back, file_failed]
                finally:
                    if http is not None:
                        await http.close()
                    await listener.close()
                for task in tasks_to_cancel:
                    task.cancel()
        finally:
            await history.close()
        _log.info("history.ended", is_broken=file_lost.is_set())
        if file_lost.is_set():
            await asyncio.sleep(RETRY_S)

    async def _listen(
        self, listener: NativeListener, http: HttpServer | None, settings: Settings
    ) -> dict[str, str]:
        """Start listening, and return the URLs."""
        is_safe, host = self._certificate is not None, settings.listen.host
        port = await listener.listen(host, settings.listen.port)
        urls = {"url": front_end_url(front_end_named(NATIVE), host, port, is_safe=is_safe)}
        if http is not None:
            host = settings.http.host or host
            port = await http.listen(host, settings.http.port or 0)
            urls["http"] = front_end_url(front_end_named(HTTP), host, port, is_safe=is_safe)
        return urls


async def _wait_for(event: asyncio.Event) -> None:
    await event.wait()


def check_history(cluster: ClusterSettings) -> None:
    """Raise ``InvalidArgument`` for a port of HTTP without a port of history."""
    if cluster.history_port is None and cluster.history_http_port is not None:
        raise InvalidArgument(
            "cluster.history_http_port is set, and cluster.history_port is not: name the port at "
            "which the node shows sealed history, or leave cluster.history_http_port out"
        )


def history_settings(settings: Settings) -> Settings:
    """Return the settings for serving history, derived from the node's settings."""
    cluster = settings.cluster
    assert cluster.history_port is not None, "history is configured"
    return replace(
        settings,
        listen=replace(settings.listen, port=cluster.history_port, amqp_port=None, mqtt_port=None),
        http=replace(
            settings.http,
            enabled=cluster.history_http_port is not None,
            port=cluster.history_http_port,
            pipelines="",
        ),
    )


def _log_fields(history: SealedHistory) -> dict[str, object]:
    return {
        "as_of_us": history.as_of_us,
        "events": history.realm.recovered.events - sum(history.missing.values()),
        "left_out": sum(history.missing.values()),
    }


def _leaves(group: BaseExceptionGroup[PenstockError]) -> list[BaseException]:
    """Return the exceptions in a group and in the groups inside it."""
    leaves: list[BaseException] = []
    for failure in group.exceptions:
        leaves += _leaves(failure) if isinstance(failure, BaseExceptionGroup) else [failure]
    return leaves

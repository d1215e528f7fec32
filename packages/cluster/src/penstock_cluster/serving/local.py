"""The local channels of a node: a realm separate from that of the cluster, with separate ports
and a separate data directory, which continues when the cluster cannot (SEM N8)."""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from penstock_cluster.nodes.local_names import LocalStoreNames
from penstock_cluster.nodes.outbox import OutboxSender
from penstock_cluster.nodes.owner_link import OwnerClient
from penstock_cluster.nodes.register_poller import poll_forever
from penstock_core.api.realm import ClusterInfo
from penstock_core.loggers import logger
from penstock_core.version import __version__
from penstock_core.vocabulary.errors import Internal, InvalidArgument, NoQuorum, PenstockError
from penstock_core.vocabulary.ports import Registry
from penstock_server.bootstrap import native_listener, open_realm
from penstock_server.bootstrap.front_end_urls import front_end_url
from penstock_server.frontends.front_end import (
    NATIVE,
    FrontEnd,
    front_end_named,
    front_ends,
    service_of,
)
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.frontends.shared.ports import HeldPorts
from penstock_server.frontends.shared.tls import Tls
from penstock_server.runtime.access.shared_accounts import ACCESS_PREFIX, SharedAccounts
from penstock_server.runtime.realm import RunningRealm
from penstock_server.runtime.upkeep.regular_work import run_again
from penstock_server.serving.lifecycle import first_failure, wanted_front_ends
from penstock_server.settings import ClusterSettings, Settings

LOCAL_FOLDER: Final = "local"
"""Data directory of the local channels, inside the node's data directory."""
GRANT_PAUSE_S: Final = 1.0
"""Pause before the names of the MQTT channels are requested once more."""

_log = logger("penstock.local")


class LocalRealm:
    """The realm of a node's local channels. :meth:`open` creates it; :meth:`run` runs and ends
    it."""

    def __init__(
        self,
        realm: RunningRealm,
        names: LocalStoreNames,
        shared: SharedAccounts,
        registry: Registry,
        settings: Settings,
        ports: HeldPorts,
        certificate: Tls | None,
        owner_client: OwnerClient,
    ) -> None:
        """``settings`` are those of the node, with the bound ports."""
        self.realm = realm
        self._names = names
        self._owner_client = owner_client
        self._sender = OutboxSender(realm, owner_client)
        self._shared = shared
        self._registry = registry
        self._settings = local = local_settings(settings, realm.directory.rules.local_to)
        self._lease_s = settings.cluster.lease_s
        self.listener: NativeListener = native_listener(
            realm, local, __version__, certificate=certificate
        )
        self.listener.ports = ports
        self._front_ends = wanted_front_ends(local)

    @classmethod
    async def open(
        cls,
        directory: Path,
        settings: Settings,
        node: str,
        registry: Registry,
        ports: HeldPorts,
        certificate: Tls | None,
        owner_client: OwnerClient,
    ) -> LocalRealm:
        """Recover the local realm in the node's ``directory``, or create it. Copies of its joins
        for cluster-wide stores go through the ``owner_client``. Raises the errors of
        :func:`~penstock_server.bootstrap.open_realm`."""
        shared = SharedAccounts(registry)
        if settings.access.mode != "off":
            await shared.refresh()
        local = replace(settings, name=f"{settings.name}@{node}")
        realm = await open_realm(directory / LOCAL_FOLDER, local, local_to=node, shared=shared)
        realm.cluster = lambda: ClusterInfo(local_to=node)
        names = LocalStoreNames(registry, node)
        names.directory = realm.directory
        realm.name_with(names)
        return cls(
            realm,
            names,
            shared,
            registry=registry,
            settings=settings,
            ports=ports,
            certificate=certificate,
            owner_client=owner_client,
        )

    async def run(self, stopping: asyncio.Event) -> None:
        """Serve until ``stopping`` is set. A failure is logged, and does not end the node."""
        incidents = self.realm.incidents
        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.realm.run(), name="local realm")
                ready = asyncio.Event()
                background = [
                    tasks.create_task(self.listener.run(ready), name="local listener"),
                    tasks.create_task(self._names.run(incidents), name="local names"),
                    tasks.create_task(self._follow_users(), name="local users"),
                    tasks.create_task(
                        run_again(incidents, "outboxes", self._sender.run), name="outboxes"
                    ),
                ]
                try:
                    await ready.wait()
                    for front_end in self._front_ends:
                        service = service_of(self.listener, front_end.name, self._settings)
                        name = f"local {front_end.name}"
                        background.append(tasks.create_task(service.run(), name=name))
                    await self._listen()
                    for front_end in self._front_ends:
                        if front_end.opens_stores:
                            serve = partial(self._serve_later, front_end)
                            serving = run_again(incidents, front_end.name, serve)
                            background.append(tasks.create_task(serving))
                    await stopping.wait()
                finally:
                    for service in self.listener.services.values():
                        await service.close()
                    await self.listener.close()
                await self.realm.close()
                for task in background:
                    task.cancel()
        except* PenstockError as failures:
            failure = first_failure(failures)
            _log.error("local.failed", code=failure.code, reason=str(failure))
        except* Exception as failures:  # noqa: BLE001  the cluster's realm must not end with it
            error = Internal(f"{failures.exceptions[0]!r}")
            _log.exception("local.failed", code=error.code, reason=str(error))
        finally:
            self._owner_client.close()
            await self.realm.release()

    async def _listen(self) -> None:
        """Listen at the ports of all front ends that need no stores of their protocol."""
        listen, is_safe = self._settings.listen, self.listener.tls is not None
        port = await self.listener.listen(listen.host, listen.port)
        native = front_end_named(NATIVE)
        urls = {"url": front_end_url(native, listen.host, port, is_safe=is_safe)}
        for front_end in self._front_ends:
            host, port = _place(front_end, self._settings)
            if not front_end.opens_stores:
                port = await self.listener.services[front_end.name].listen(host, port)
            urls[front_end.name] = front_end_url(front_end, host, port, is_safe=is_safe)
        _log.info("local.listening", **urls)

    async def _serve_later(self, front_end: FrontEnd) -> None:
        """Listen for a front end that needs stores of its protocol, as soon as these exist."""
        host, port = _place(front_end, self._settings)
        await serve_mqtt(self.listener.services[front_end.name], host, port)

    async def _follow_users(self) -> None:
        """Apply changes of the cluster's users and rights to the local realm, until cancelled."""
        if self.realm.access.is_open:
            return

        async def refresh() -> None:
            if await self._shared.refresh():
                await self.realm.access.accounts.follow()

        await poll_forever(
            self._registry,
            ACCESS_PREFIX,
            refresh,
            incidents=self.realm.incidents,
            task="local users",
            every_s=self._lease_s / 3,
        )

    def reload(self) -> None:
        """Fetch the keys of tokens again; the certificate is that of the node."""
        self.realm.access.reload()
        if self.listener.tls is not None:
            self.realm.access.revoke(self.listener.tls.revoked)


def _place(front_end: FrontEnd, settings: Settings) -> tuple[str, int]:
    place = front_end.place(settings)
    assert place is not None, "the settings ask for it"
    return place.host, place.port


async def serve_mqtt(hub: FrontEndService, host: str, port: int) -> None:
    """Serve MQTT on local channels as soon as its channels exist. They are created at the first
    start, and their names have to be granted; meanwhile all other front ends serve."""
    is_logged = False
    while True:
        try:
            await hub.listen(host, port)
        except NoQuorum as error:
            if not is_logged:
                _log.warning("local.mqtt_waits", reason=str(error))
            is_logged = True
            await asyncio.sleep(GRANT_PAUSE_S)
        else:
            return


def check_local(cluster: ClusterSettings) -> None:
    """Raise ``InvalidArgument`` for ports of local channels if the node has no local channels."""
    for name in ("local_http_port", "local_amqp_port", "local_mqtt_port"):
        if cluster.local_port is None and getattr(cluster, name) is not None:
            raise InvalidArgument(
                f"cluster.{name} is set, and cluster.local_port is not: name the port of the "
                f"node's local channels, or leave cluster.{name} out"
            )


def local_settings(settings: Settings, node: str) -> Settings:
    """Return the settings of a node's local channels, derived from those of the node."""
    for front_end in front_ends().values():
        settings = front_end.for_local_channels(settings, node)
    return settings

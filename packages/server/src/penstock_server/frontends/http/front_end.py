"""HTTP as a front end: the administration API, metrics and the console."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock_core.loggers import logger
from penstock_server.frontends.front_end import HTTP, FrontEnd, ListenAddress, StandbyNode
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.settings import HTTP_PORT, Settings

if TYPE_CHECKING:
    from penstock_server.frontends.http.server import HttpServer
    from penstock_server.frontends.http.standby import StandbyHttpConnection

_log = logger("penstock.realm")


class HttpFrontEnd(FrontEnd):
    name = HTTP
    schemes = ("http://", "https://")
    modules = ("penstock_server.frontends.http.server",)

    def place(self, settings: Settings) -> ListenAddress | None:
        http = settings.http
        if not http.enabled:
            return None
        port = HTTP_PORT if http.port is None else http.port
        host, is_required = http.host or settings.listen.host, http.port is not None
        return ListenAddress(host, port, is_required=is_required)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        return replace(settings, http=replace(settings.http, enabled=port is not None, port=port))

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        local = replace(settings, http=replace(settings.http, pipelines=""))
        return self.at_port(local, settings.cluster.local_http_port)

    def service(self, listener: NativeListener, settings: Settings) -> HttpServer:
        return http_server(listener, settings)

    def standby(self, node: StandbyNode) -> Callable[[], StandbyHttpConnection]:
        from penstock_server.frontends.http.standby import (
            StandbyHttpConnection,  # for clusters only
        )

        return partial(
            StandbyHttpConnection, node.arrivals, node.is_relaying, node.unfit, node.incidents
        )

    def wants_relay(self, data: bytes) -> bool | None:
        from penstock_server.frontends.http.standby import wants_relay

        return wants_relay(data)

    def log_listening(self, url: str) -> None:
        _log.info("http.listening", url=url, serves="console, /api/v1, /metrics, /health")

    def log_left_out(self, reason: str) -> None:
        _log.warning("http.not_listening", reason=reason)


def http_server(listener: NativeListener, settings: Settings) -> HttpServer:
    """Return the HTTP server of a realm. Its modules are imported only here, so that a realm
    without HTTP does not load them."""
    from penstock_server.frontends.http.http_service import HttpLimits
    from penstock_server.frontends.http.server import HttpServer

    http = settings.http
    listener.realm.pipeline_folders = tuple(name for name in http.pipelines.split(":") if name)
    return HttpServer(
        listener,
        HttpLimits(
            connections_max=http.connections_max,
            connections_per_address_max=http.connections_per_address_max,
            hosts=frozenset(name.strip() for name in http.hosts.split(",") if name.strip()),
            body_bytes_max=http.body_bytes,
            head_timeout_s=http.head_timeout_s,
            body_timeout_s=http.body_timeout_s,
            send_timeout_s=http.send_timeout_s,
            viewers_max=http.viewers_max,
            viewers_per_user_max=http.viewers_per_user_max,
            requests_per_user_max=http.requests_per_user_max,
            channels_named_max=http.channels_named_max,
            login_total_s=settings.access.login_total_s,
        ),
        tls=None if listener.tls is None else listener.tls.context,
    )


FRONT_END: Final = HttpFrontEnd()

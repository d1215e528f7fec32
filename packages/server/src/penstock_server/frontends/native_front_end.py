"""The native protocol as a front end, whose listener all other front ends share."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from penstock_core.loggers import logger
from penstock_server.frontends.front_end import NATIVE, FrontEnd, ListenAddress, StandbyNode
from penstock_server.frontends.native.listener import NativeListener
from penstock_server.frontends.shared.front_end_service import FrontEndService
from penstock_server.settings import Settings

if TYPE_CHECKING:
    from penstock_server.frontends.native.standby import StandbyConnection

_log = logger("penstock.realm")


class NativeService(FrontEndService):
    """The native listener as a service; the server runs and closes the listener itself."""

    def __init__(self, listener: NativeListener) -> None:
        self._listener = listener

    async def listen(self, host: str, port: int) -> int:
        return await self._listener.listen(host, port)


class NativeFrontEnd(FrontEnd):
    name = NATIVE
    schemes = ("penstock://", "penstocks://")

    def place(self, settings: Settings) -> ListenAddress:
        return ListenAddress(settings.listen.host, settings.listen.port)

    def at_port(self, settings: Settings, port: int | None) -> Settings:
        assert port is not None, "every realm speaks the native protocol"
        return replace(settings, listen=replace(settings.listen, port=port))

    def for_local_channels(self, settings: Settings, node: str) -> Settings:
        return self.at_port(settings, settings.cluster.local_port)

    def service(self, listener: NativeListener, settings: Settings) -> NativeService:
        return NativeService(listener)

    def standby(self, node: StandbyNode) -> Callable[[], StandbyConnection]:
        from penstock_server.frontends.native.standby import StandbyConnection  # for clusters only

        return partial(StandbyConnection, node.arrivals, node.followers)

    def wants_relay(self, data: bytes) -> bool | None:
        from penstock_server.frontends.native.standby import wants_relay

        return wants_relay(data)

    def log_listening(self, url: str) -> None:
        _log.info("realm.listening", url=url)


FRONT_END: Final = NativeFrontEnd()

"""A blocking AMQP client for tests, based on Proton's reactor."""

from __future__ import annotations

from types import TracebackType
from typing import Any, Self

from proton import UNDESCRIBED, Array, Data, Terminus, symbol
from proton.reactor import Container, Filter, LinkOption
from proton.utils import BlockingConnection, BlockingReceiver, BlockingSender

WAIT_S = 20.0


def array(*names: str) -> Array:
    return Array(UNDESCRIBED, Data.SYMBOL, *map(symbol, names))


class Source(LinkOption):  # type: ignore[misc]  # Proton has no types
    """The options of a receiver's source."""

    def __init__(
        self, *capabilities: str, durable: bool = False, selector: str = "", no_local: bool = False
    ) -> None:
        self._capabilities = capabilities
        self._durable = durable
        self._filters: dict[Any, Any] = {}
        if selector:
            self._filters[symbol("jms-selector")] = selector
        if no_local:
            self._filters[symbol("no-local")] = []

    def apply(self, link: Any) -> None:
        source = link.source
        source.capabilities.put_object(array(*self._capabilities))
        if self._durable:
            source.durability = Terminus.DELIVERIES
            source.expiry_policy = Terminus.EXPIRE_NEVER
        if self._filters:
            Filter(self._filters).apply(link)


class Target(LinkOption):  # type: ignore[misc]  # Proton has no types
    """The options of a sender's target."""

    def __init__(self, *capabilities: str) -> None:
        self._capabilities = capabilities

    def apply(self, link: Any) -> None:
        link.target.capabilities.put_object(array(*self._capabilities))


class Client:
    """One connection to a realm."""

    def __init__(self, url: str, container: str = "", *, sole: bool = False, **sasl: Any) -> None:
        proton_container = Container()
        proton_container.container_id = container or proton_container.container_id
        more = {"desired_capabilities": [symbol("sole-connection-for-container")]} if sole else {}
        self.blocking = BlockingConnection(
            url, timeout=WAIT_S, container=proton_container, **more, **sasl
        )
        self._links = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        self.blocking.close()

    def sender(self, address: str | None, *capabilities: str) -> BlockingSender:
        self._links += 1
        name = f"s{self._links}"
        return self.blocking.create_sender(address, name=name, options=Target(*capabilities))

    def receiver(
        self,
        address: str | None,
        *capabilities: str,
        credit: int = 10,
        name: str = "",
        dynamic: bool = False,
        **source: Any,
    ) -> BlockingReceiver:
        self._links += 1
        return self.blocking.create_receiver(
            address,
            credit=credit,
            name=name or f"r{self._links}",
            dynamic=dynamic,
            options=Source(*capabilities, **source),
        )


def texts(receiver: BlockingReceiver, count: int) -> list[Any]:
    """Return the bodies of messages, after accepting each."""
    bodies = []
    for _ in range(count):
        message = receiver.receive(WAIT_S)  # its body lies in it
        bodies.append(plain(message.body))
        receiver.accept()
    return bodies


def plain(body: Any) -> Any:
    return bytes(body) if isinstance(body, memoryview) else body

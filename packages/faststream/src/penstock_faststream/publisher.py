"""Publishers: publish what handlers return, or messages of a program, on one channel or queue."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Unpack

from faststream._internal.endpoint.publisher import PublisherSpecification, PublisherUsecase
from faststream._internal.endpoint.publisher.fake import FakePublisher
from faststream._internal.producer import ProducerProto
from faststream._internal.types import PublisherMiddleware
from faststream.response import PublishCommand, PublishType

from penstock import Refused
from penstock.aio import ReceivedEvent
from penstock_faststream.configs import PenstockBrokerConfig, PenstockPublisherConfig
from penstock_faststream.message import PenstockMessage
from penstock_faststream.publish_command import PenstockPublishCommand, PublishOptions


class ChannelPublisher(PublisherUsecase):
    """Publishes on one channel or queue."""

    __slots__ = ("_address", "headers", "is_batch", "options", "reply_to")

    _outer_config: PenstockBrokerConfig

    def __init__(
        self, config: PenstockPublisherConfig, specification: PublisherSpecification[Any, Any]
    ) -> None:
        super().__init__(config, specification)
        self._address = config.address
        self.headers = config.headers
        self.options = config.options
        self.is_batch = config.is_batch
        self.reply_to = config.reply_to

    @property
    def channel(self) -> str:
        """Name of the channel or queue, with the prefix of the router."""
        return self._address.add_prefix(self._outer_config.prefix).template

    async def publish(
        self,
        *messages: Any,
        channel: str = "",
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        reply_to: str = "",
        **options: Unpack[PublishOptions],
    ) -> int | range:
        """Publish a message, or with ``batch=True`` several in one step. Return the id of its
        event, or their ids, once the realm has stored them."""
        command = self._command(
            *messages,
            publish_type=PublishType.PUBLISH,
            channel=channel,
            headers=headers,
            correlation_id=correlation_id,
            reply_to=reply_to,
            options=options,
        )
        ids: int | range = await self._send(command, ())
        return ids

    async def request(  # type: ignore[override]
        self,
        message: Any = None,
        channel: str = "",
        *,
        timeout: float = 0.5,
        headers: dict[str, Any] | None = None,
        **options: Unpack[PublishOptions],
    ) -> PenstockMessage:
        """Publish a request and return the reply. Raises ``NoReply`` if none arrives within
        ``timeout`` seconds."""
        command = self._command(
            message,
            publish_type=PublishType.REQUEST,
            channel=channel,
            headers=headers,
            timeout_s=timeout,
            options=options,
        )
        reply: PenstockMessage = await self._basic_request(
            command, producer=self._outer_config.producer
        )
        return reply

    def _command(self, *messages: Any, **parts: Any) -> PenstockPublishCommand:
        parts["correlation_id"] = parts.get("correlation_id") or self._outer_config.id_generator()
        command = PenstockPublishCommand(*(messages or (None,)), **parts)
        return self._with_defaults(command)

    def _with_defaults(self, command: PenstockPublishCommand) -> PenstockPublishCommand:
        command.reply_to = command.reply_to or self.reply_to
        return command.with_defaults(self.channel, self.headers, self.options)

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish what a handler has returned."""
        command = PenstockPublishCommand.from_cmd(cmd, batch=self.is_batch)
        await self._send(self._with_defaults(command), _extra_middlewares)

    async def _send(
        self, command: PenstockPublishCommand, middlewares: Iterable[PublisherMiddleware]
    ) -> Any:
        send = self._basic_publish_batch if self.is_batch else self._basic_publish
        return await send(
            command, producer=self._outer_config.producer, _extra_middlewares=middlewares
        )


class ReplyPublisher(FakePublisher):
    """Sends what a handler returns to the client that waits for a reply."""

    __slots__ = ("_reply_to", "_report", "_request")

    def __init__(
        self,
        producer: ProducerProto[Any],
        reply_to: str,
        request: ReceivedEvent,
        report: Callable[[str], None],
    ) -> None:
        """``report`` is called with a text if the realm refuses the reply."""
        super().__init__(producer=producer)
        self._reply_to = reply_to
        self._request = request
        self._report = report

    async def _publish(
        self, cmd: PublishCommand, *, _extra_middlewares: Iterable[PublisherMiddleware]
    ) -> None:
        """Publish the reply. A refusal is reported and does not fail the handler. Otherwise the
        request would be delivered again, with the same ``reply_to``, which any publisher may
        choose."""
        try:
            await super()._publish(cmd, _extra_middlewares=_extra_middlewares)
        except Refused as error:
            self._report(f"the reply to event {self._request.event_id} is refused: {error!r}")

    def patch_command(self, cmd: PublishCommand) -> PenstockPublishCommand:
        """Return the command that publishes the reply."""
        command = PenstockPublishCommand.from_cmd(super().patch_command(cmd))
        command.destination = self._reply_to
        command.request = self._request
        return command

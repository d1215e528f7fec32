"""Commands to publish messages, on their way through the middlewares to the realm."""

from __future__ import annotations

from typing import Any, Self, Unpack, cast

from faststream.response import BatchPublishCommand, PublishCommand, PublishType, Response

from penstock.aio import ReceivedEvent
from penstock.client.publishing.event_attributes import ScalarAttributes


class PublishOptions(ScalarAttributes, total=False):
    """Attributes of a published event, apart from its data, properties and headers."""

    transient: bool
    """Channels only: whether the event is delivered to connected subscribers and never stored."""


class PenstockResponse(Response):
    """A return value of a handler with attributes of the published event; also a message of
    ``publish_batch`` with separate attributes."""

    def __init__(
        self,
        body: Any,
        *,
        headers: dict[str, Any] | None = None,
        correlation_id: str | None = None,
        **options: Unpack[PublishOptions],
    ) -> None:
        """``headers`` are properties of the event."""
        super().__init__(body, headers=headers, correlation_id=correlation_id)
        self.options = options

    def as_publish_command(self) -> PenstockPublishCommand:
        """Return the command that publishes the response."""
        return PenstockPublishCommand(
            self.body,
            headers=self.headers,
            correlation_id=self.correlation_id,
            publish_type=PublishType.PUBLISH,
            options=self.options,
        )


class PenstockPublishCommand(BatchPublishCommand):
    """Messages to publish on one channel or queue."""

    def __init__(
        self,
        body: Any,
        /,
        *bodies: Any,
        publish_type: PublishType,
        channel: str = "",
        correlation_id: str | None = None,
        headers: dict[str, Any] | None = None,
        reply_to: str = "",
        timeout_s: float = 0.5,
        options: PublishOptions | None = None,
    ) -> None:
        """``timeout_s`` is the time in seconds that a request waits for its reply."""
        super().__init__(
            body,
            *bodies,
            _publish_type=publish_type,
            destination=channel,
            correlation_id=correlation_id,
            headers=headers,
            reply_to=reply_to,
        )
        self.options = options or {}
        self.timeout_s = timeout_s
        self.request: ReceivedEvent | None = None
        """The request that is replied to; None if this is not a reply."""

    @classmethod
    def from_cmd(cls, cmd: PublishCommand, *, batch: bool = False) -> Self:
        """Return a command of FastStream as one of this class. With ``batch``, a body that is a
        list becomes several messages."""
        if isinstance(cmd, PenstockPublishCommand):
            command = cast("Self", cmd)
            if batch:
                command.body, command.extra_bodies = cls._parse_bodies(command.body, batch=True)
            return command
        body, bodies = cls._parse_bodies(cmd.body, batch=batch)
        return cls(
            body,
            *bodies,
            publish_type=cmd.publish_type,
            channel=cmd.destination,
            correlation_id=cmd.correlation_id,
            headers=cmd.headers,
            reply_to=cmd.reply_to,
        )

    def with_defaults(self, channel: str, headers: dict[str, Any], options: PublishOptions) -> Self:
        """Add what a publisher publishes with each message; the message's own values win."""
        self.destination = self.destination or channel
        self.add_headers(headers, override=False)
        self.options = {**options, **self.options}
        return self

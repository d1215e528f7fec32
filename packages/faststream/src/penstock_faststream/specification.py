"""Subscribers and publishers in the AsyncAPI document."""

from __future__ import annotations

from faststream._internal.endpoint.publisher import PublisherSpecification
from faststream._internal.endpoint.subscriber import SubscriberSpecification
from faststream.specification.asyncapi.utils import resolve_payloads
from faststream.specification.schema import Message, Operation, PublisherSpec, SubscriberSpec

from penstock_faststream.configs import (
    PenstockBrokerConfig,
    PenstockPublisherSpecificationConfig,
    PenstockSubscriberSpecificationConfig,
)


class PenstockSubscriberSpecification(
    SubscriberSpecification[PenstockBrokerConfig, PenstockSubscriberSpecificationConfig]
):
    """A subscriber in the AsyncAPI document."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The name of the channel or queue, or the pattern, with its parameters."""
        return self.config.source.address.add_prefix(self._outer_config.prefix).template

    @property
    def description(self) -> str | None:
        """The docstring of the handler, and the durable: AsyncAPI has bindings of well-known
        protocols only."""
        durable = self.config.source.durable
        source = f"Events of the durable `{durable.name}` ({durable.type})." if durable else ""
        parts = (super().description, source)
        return "\n\n".join(part for part in parts if part) or None

    @property
    def channel_labels(self) -> list[str]:
        """The name in the document."""
        return [self.address]

    def get_schema(self) -> dict[str, SubscriberSpec]:
        """Return the channel of the document with its messages."""
        message = Message(
            title=f"{self.name}:Message", payload=resolve_payloads(self.get_payloads())
        )
        return {
            self.name: SubscriberSpec(
                address=self.address,
                description=self.description,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }


class PenstockPublisherSpecification(
    PublisherSpecification[PenstockBrokerConfig, PenstockPublisherSpecificationConfig]
):
    """A publisher in the AsyncAPI document."""

    __slots__ = ()

    @property
    def address(self) -> str:
        """The name of the channel or queue."""
        return self.config.address.add_prefix(self._outer_config.prefix).template

    @property
    def name(self) -> str:
        """The name in the document."""
        return self.config.title_ or f"{self.address}:Publisher"

    def get_schema(self) -> dict[str, PublisherSpec]:
        """Return the channel of the document with its messages."""
        payload = resolve_payloads(self.get_payloads(), "Publisher")
        message = Message(title=f"{self.name}:Message", payload=payload)
        return {
            self.name: PublisherSpec(
                address=self.address,
                description=self.config.description_,
                operation=Operation(message=message, bindings=None),
                bindings=None,
            )
        }

"""Configurations of subscribers, publishers and the broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

from faststream import AckPolicy
from faststream._internal.configs import (
    BrokerConfig,
    PublisherSpecificationConfig,
    PublisherUsecaseConfig,
    SubscriberSpecificationConfig,
    SubscriberUsecaseConfig,
)
from faststream._internal.constants import EMPTY
from faststream._internal.utils.path import Address, AddressSyntax
from faststream.exceptions import IncorrectState

from penstock.aio import Session
from penstock.client.connection.arguments import Duration
from penstock.client.reading.start_positions import StartLike
from penstock_faststream.declared import DurableSub
from penstock_faststream.producer import RealmProducer
from penstock_faststream.publish_command import PublishOptions

ADDRESS_SYNTAX: Final = AddressSyntax(
    replace_symbol="*",
    patch_regex=lambda expression: (
        expression.replace(r"\*\*", ".*").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
    ),
    param_regex="[^/]+",
)
"""A parameter such as ``{region}`` in the name of a channel stands for a part up to the next
``/``."""


@dataclass(kw_only=True)
class PenstockBrokerConfig(BrokerConfig):
    """Configuration of a broker or router."""

    _session: Session | None = field(default=None, init=False, repr=False)

    @property
    def session(self) -> Session:
        """The session with the realm. Raises ``IncorrectState`` before it is connected."""
        if self._session is None:
            raise IncorrectState("the realm is not connected; call connect() or start() first")
        return self._session

    def connect(self, session: Session) -> None:
        """Publish and subscribe over ``session`` from now on."""
        self._session = session
        if isinstance(self.producer, RealmProducer):
            self.producer.connect(session, self.broker_codec, self.fd_config._serializer)

    def disconnect(self) -> None:
        """Forget the session."""
        self._session = None
        if isinstance(self.producer, RealmProducer):
            self.producer.disconnect()


@dataclass(kw_only=True)
class SubscriberSource:
    """The channel, durable or queue that a subscriber reads, and its options."""

    address: Address
    """Name or pattern, without the prefix of a router."""
    durable: DurableSub | None
    window: int | None
    selector: str
    start: StartLike | None
    ack_timeout: Duration | None
    creates: bool
    """Whether a missing queue, channel or durable is created."""
    is_batch: bool
    max_workers: int


@dataclass(kw_only=True)
class PenstockSubscriberConfig(SubscriberUsecaseConfig):
    """Configuration of a subscriber."""

    _outer_config: PenstockBrokerConfig = field(default_factory=PenstockBrokerConfig)
    source: SubscriberSource

    @property
    def ack_policy(self) -> AckPolicy:
        """The policy of the subscriber or of the broker; by default, an event whose handler fails
        is rolled back."""
        if self._ack_policy is not EMPTY:
            return self._ack_policy
        if self._outer_config.ack_policy is not EMPTY:
            return self._outer_config.ack_policy
        return AckPolicy.NACK_ON_ERROR


@dataclass(kw_only=True)
class PenstockSubscriberSpecificationConfig(SubscriberSpecificationConfig):
    """Configuration of a subscriber for the AsyncAPI document."""

    source: SubscriberSource


@dataclass(kw_only=True)
class PenstockPublisherConfig(PublisherUsecaseConfig):
    """Configuration of a publisher."""

    _outer_config: PenstockBrokerConfig = field(default_factory=PenstockBrokerConfig)
    address: Address
    headers: dict[str, Any]
    options: PublishOptions
    is_batch: bool
    reply_to: str


@dataclass(kw_only=True)
class PenstockPublisherSpecificationConfig(PublisherSpecificationConfig):
    """Configuration of a publisher for the AsyncAPI document."""

    address: Address

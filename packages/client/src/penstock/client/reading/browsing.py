"""Browses of the outstanding events of a durable or queue, which change nothing (SEM D16, Q4)."""

from __future__ import annotations

from penstock.client.connection.connection import RealmConnection
from penstock.client.reading.subscription import CREDIT_MAX, Subscription
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import BrowseDurable, Subscribed
from penstock_core.display import short
from penstock_core.durable.queue import READERS
from penstock_core.vocabulary.errors import ConnectionLost
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import AnyStart, FromEarliest


class DurableBrowse(Subscription):
    """A browse of a durable or queue, in order. ``count_max`` limits the number of events."""

    def __init__(
        self,
        connection: RealmConnection,
        channel: ChannelId,
        durable: str,
        *,
        selector: str = "",
        count_max: int | None = None,
    ) -> None:
        super().__init__(connection, channel, FromEarliest(), selector=selector, browse=True)
        self._durable = durable
        self._granted = CREDIT_MAX if count_max is None else count_max
        self._renews_credit = count_max is None

    def _source_text(self) -> str:
        durable = "" if self._durable == READERS else f"durable {short(self._durable)} of "
        return f"{durable}{super()._source_text()}"

    def _request(self, start: AnyStart) -> Request[Subscribed]:
        """Return the request that opens the browse, which always begins at the oldest outstanding
        event."""
        return BrowseDurable(
            self._channel,
            self._attachment.number,
            self._durable,
            credit=self._granted,
            selector=self._selector,
            bytes_max=self._buffer_bytes,
        )

    async def _reopen(self) -> None:
        if self._attachment.is_open:
            self._failed(ConnectionLost("the connection was lost while browsing; browse again"))

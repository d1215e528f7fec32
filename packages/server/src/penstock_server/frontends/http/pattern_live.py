"""A live view of all channels of a pattern, including channels created while it is open
(SEM D21)."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from penstock_core.api.channels import ChannelOpened
from penstock_core.api.operations import READ
from penstock_core.api.patterns import WatchChannels
from penstock_core.columns.selectors import Selector
from penstock_core.vocabulary.errors import (
    AccessDenied,
    LimitReached,
    NameDoesNotExist,
    PenstockError,
)
from penstock_core.vocabulary.start_positions import AnyStart, FromEarliest
from penstock_server.frontends.http.event_documents import messages_of
from penstock_server.frontends.http.finding import start_of, store_of
from penstock_server.frontends.http.live import ChannelView, Viewer, message, selector_of, woken
from penstock_server.frontends.http.routing import Call, Events
from penstock_server.frontends.http.shapes import ErrorDetail, LiveQuery, Lost
from penstock_server.runtime.operations.door import check, watch_channels

CHANNELS_MAX: Final = 256
"""Maximum number of channels in one view."""
WINDOW: Final = 10
"""Maximum number of events of one channel granted to a viewer and not yet sent to it. Each round
sends the waiting events of every channel, so a busy channel does not delay a quiet one."""
LINE_BYTES_MAX: Final = 32 << 10
"""Maximum size in bytes of an event that is shown with its data and properties."""


class PatternQuery(LiveQuery, frozen=True, kw_only=True):
    pattern: Annotated[str, Meta(min_length=1, max_length=4_096)]
    """Names or patterns of channels, such as orders/* or eu/**, separated by commas."""


class LostOfChannel(Lost, frozen=True, kw_only=True):
    """A live view of several channels was too slow for one of them."""

    channel: str


class PatternView:
    """A live view of the channels of one pattern that the caller may read."""

    def __init__(
        self, call: Call[PatternQuery, None], request: WatchChannels, selector: Selector | None
    ) -> None:
        self._caller, self._query, self._request = call.caller, call.query, request
        self._selector = selector
        self._start = start_of(call.query.start)
        self._wake = asyncio.Event()
        self._parts: dict[int, tuple[ChannelView, Viewer]] = {}
        """The part of the view for each channel, with the viewer that receives its events, by
        channel id."""
        self._reason: PenstockError | None = None
        self._watch, _ = watch_channels(self._caller, request, lambda _: self._wake.set())
        self._stop_listening = self._caller.realm.access.on_changed(self._check_rights)

    def close(self) -> None:
        """Free the view's resources."""
        self._stop_listening()
        self._caller.realm.watches.end(self._watch)
        for part, _ in self._parts.values():
            part.close()

    def stop(self, reason: PenstockError) -> None:
        """End the view with a reason."""
        self._reason = reason
        self._wake.set()

    async def join(self) -> None:
        """Open a part for each channel that the viewer may read and that has no part yet. Raises
        ``LimitReached``."""
        new = self._watch.shown - self._parts.keys()
        for opened in self._caller.realm.watches.opened(new):
            if len(self._parts) >= CHANNELS_MAX:
                raise LimitReached(
                    f"{self._request.pattern!r} matches more than {CHANNELS_MAX} channels that you "
                    f"may read, which is the limit of a live view; use a narrower pattern"
                )
            # A channel that was created after the view began is shown from its first event.
            is_new = opened.channel >= self._watch.next_channel
            await self._open(opened, FromEarliest() if is_new else self._start)

    async def lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the lines for the viewer until the view ends."""
        yield b": watching\n\n"
        while self._reason is None:
            await woken(self._wake)
            yield b"".join([line async for line in self._take_lines()]) or b": nothing new\n\n"
            try:
                await self.join()
            except PenstockError as error:
                self._reason = error
        yield message("end", ErrorDetail(code=self._reason.code, message=str(self._reason)))

    # --- the channels ----------------------------------------------------------------------

    async def _open(self, opened: ChannelOpened, start: AnyStart) -> None:
        """Open the part of the view for one channel."""
        store = store_of(opened, "channel")
        viewer = Viewer(
            self._selector,
            messages_of(store),
            self._query.data_bytes,
            channel=opened.name,
            wake=self._wake,
            line_bytes_max=LINE_BYTES_MAX,
        )
        part = ChannelView(self._caller, store, viewer, window=WINDOW)
        with contextlib.suppress(NameDoesNotExist):  # the channel may have been deleted
            await part.open(start)
            self._parts[opened.channel] = part, viewer
            self._check_rights()  # rights may have changed while the channel was opened

    async def _take_lines(self) -> AsyncGenerator[bytes, None]:
        """Yield the waiting lines, channel by channel."""
        for channel_id, (part, viewer) in list(self._parts.items()):
            lines = viewer.take_lines()
            for line in lines:
                yield line
            if viewer.reason is not None:
                del self._parts[channel_id]
                if not isinstance(viewer.reason, AccessDenied | NameDoesNotExist):
                    self.stop(viewer.reason)  # the reason concerns the whole view
            elif (skipped_ids := await part.skip_if_behind()) is not None:
                fields = msgspec.structs.asdict(skipped_ids)
                yield message("lost", LostOfChannel(channel=viewer.channel, **fields))
            elif lines:
                part.credit(len(lines))

    def _may_read(self, viewer: Viewer) -> bool:
        return self._caller.allows(READ[0], viewer.channel)

    def _check_rights(self) -> None:
        """End the parts of channels that the viewer may no longer read."""
        for part, viewer in self._parts.values():
            if viewer.reason is None and not self._may_read(viewer):
                part.close()
                viewer.lines.clear()
                viewer.closed(AccessDenied())


async def open_pattern_view(call: Call[PatternQuery, None]) -> Events:
    """Open a live view over a pattern. Raises ``InvalidName``, ``InvalidArgument``,
    ``InvalidSelector``, ``LimitReached``."""
    request = WatchChannels(call.query.pattern, 0)
    check(call.caller, request)
    view = PatternView(call, request, await selector_of(call))
    try:
        await view.join()
    except BaseException:
        view.close()
        raise
    return Events(view.lines(), close=view.close, stop=view.stop)

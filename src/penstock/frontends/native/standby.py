"""The connections of a node that stands by: a native one is told who serves, and ended."""

from __future__ import annotations

import asyncio

from penstock.core.bounds import HEADER_BYTES_MAX
from penstock.core.vocabulary.errors import PenstockError
from penstock.frontends.native.connection import GREETING_BYTES_MAX
from penstock.frontends.shared.arrivals import Arrivals, StandbyProtocol
from penstock.frontends.shared.serving_node import part, refusal
from penstock.wire.native import messages as wire
from penstock.wire.native.frames import PREFACE, FrameReader, frame


class StandbyConnection(StandbyProtocol, asyncio.BufferedProtocol):
    """Waits for the first frame, whatever it asks, and answers with the address of the owner."""

    def __init__(self, arrivals: Arrivals) -> None:
        super().__init__(arrivals)
        self._reader = FrameReader(
            preface=PREFACE,
            frame_bytes_max=GREETING_BYTES_MAX,
            header_bytes_max=HEADER_BYTES_MAX,
        )

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.get_buffer()

    def buffer_updated(self, count: int) -> None:
        if self._has_answered:
            return
        self._reader.buffer_updated(count)
        try:
            if self._reader.next_frame() is not None:
                self._answer(*self._where())
        except PenstockError as error:
            self._answer(error, "")

    def _where(self) -> tuple[PenstockError, str]:
        owner = self._arrivals.owner()
        url = "" if owner is None else owner.url("native")
        return refusal(owner, "native"), url.partition("://")[2]

    def _answer(self, reason: PenstockError, address: str) -> None:
        self._has_answered = True
        said: wire.Goodbye = wire.Goodbye(reason.code, str(reason))
        if address:
            said = wire.Redirect(reason.code, str(reason), address)
        if self._transport is not None:
            part(self._transport, b"".join(map(bytes, frame(wire.encode(said)))))

"""The contract of pages, the storage of paged channels; see :mod:`penstock_testing.contracts`."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from msgspec import structs

from penstock_core.vocabulary.errors import (
    Damaged,
    StorageFailed,
)
from penstock_core.vocabulary.ports import Pages, PagesInfo, PageSlot
from penstock_testing.contracts import raises


class PagesContract(ABC):
    """Pages store bodies in slots; they are read without a copy."""

    @abstractmethod
    async def open(self) -> Pages:
        """Return pages of a realm without paged channels, before ``restore`` was called."""

    async def check_bodies_are_read_back_from_their_places(self) -> None:
        pages = await self.begin()
        bodies = [b"", b"a", bytes(range(256)) * 40, b"", b"\0" * 9]
        places = await _put(pages, 7, bodies)
        assert [bytes(pages.view(7, place)) for place in places] == bodies
        assert [place.size for place in places] == [len(body) for body in bodies]
        assert len({(place.page, place.offset) for place in places}) == len(bodies)
        assert all(place.page > 0 and place.offset % 8 == 0 for place in places)
        assert await pages.check(7, places) == []

    async def check_any_buffer_is_a_body(self) -> None:
        pages = await self.begin()
        for body in (bytearray(b"one"), memoryview(b"-one-")[1:4], memoryview(b"one")):
            await pages.reserve(1, [3])
            place = pages.allocate(1, body)
            await pages.flush()
            assert bytes(pages.view(1, place)) == b"one"
            assert pages.view(1, place).readonly

    async def check_channels_are_separate(self) -> None:
        pages = await self.begin()
        bodies = {channel: f"of {channel}".encode() for channel in (1, 2, 30)}
        for channel, body in bodies.items():
            await pages.reserve(channel, [len(body)])
        places = {channel: pages.allocate(channel, body) for channel, body in bodies.items()}
        await pages.flush()
        await pages.drop(2)
        assert {number: bytes(pages.view(number, places[number])) for number in (1, 30)} == {
            1: b"of 1",
            30: b"of 30",
        }
        _check_refused(pages, 2, places[2])
        assert (pages.info(2), pages.info(30).used) == (PagesInfo(0, 0, 0), 5)

    async def check_room_may_be_left_unused(self) -> None:
        pages = await self.begin()
        await pages.reserve(1, [10_000, 10, 300, 7])
        places = [pages.allocate(1, bytes(8)), pages.allocate(1, bytes(300))]
        await pages.flush()
        await pages.reserve(1, [])
        places += await _put(pages, 1, [b"x" * 9_999])
        assert await pages.check(1, places) == []
        assert pages.info(1).used == 8 + 300 + 9_999

    async def check_places_grow(self) -> None:
        pages = await self.begin()
        places = []
        for number in range(40):
            places += await _put(pages, 1, [bytes([number]) * 500, b"x"])
        spots = [(place.page, place.offset) for place in places]
        assert spots == sorted(spots)
        assert await pages.check(1, places) == []
        info = pages.info(1)
        assert info.used == 40 * 501
        assert info.size >= info.used
        assert info.pages >= 1

    async def check_views_outlive_everything(self) -> None:
        pages = await self.begin()
        (place,) = await _put(pages, 1, [b"first" * 900])
        view = pages.view(1, place)
        await pages.release(1, [place])
        others = await _put(pages, 1, [b"other" * 900] * 3)
        assert view == b"first" * 900
        held = pages.view(1, others[1])
        await pages.drop(1)
        await pages.close()
        assert view == b"first" * 900
        assert held == b"other" * 900

    async def check_released_bodies_do_not_count(self) -> None:
        pages = await self.begin()
        places = await _put(pages, 1, [b"x" * 700] * 30)
        await pages.release(1, places[:20])
        await pages.release(1, places[10:20])
        await pages.release(2, places)
        assert pages.info(1).used == 7_000
        assert await pages.check(1, places[20:]) == []
        await pages.release(1, places)
        assert pages.info(1).used == 0
        assert bytes(pages.view(1, (await _put(pages, 1, [b"again"]))[0])) == b"again"

    async def check_bodies_released_before_the_flush_have_no_place(self) -> None:
        pages = await self.begin()
        await pages.reserve(1, [3, 3, 3])
        places = [pages.allocate(1, body) for body in (b"one", b"two", b"thr")]
        assert pages.info(1).used == 9
        await pages.release(1, places[1:2])
        await pages.flush()
        assert pages.info(1).used == 6
        assert [bytes(pages.view(1, place)) for place in places[::2]] == [b"one", b"thr"]
        assert [body.place for body in await pages.check(1, places)] == places[1:2]

    async def check_a_channel_dropped_before_the_flush_has_no_bodies(self) -> None:
        pages = await self.begin()
        for channel in (1, 2):
            await pages.reserve(channel, [3])
        place, dropped = pages.allocate(1, b"one"), pages.allocate(2, b"two")
        await pages.drop(2)
        await pages.flush()
        assert bytes(pages.view(1, place)) == b"one"
        assert len(await pages.check(2, [dropped])) == 1

    async def check_a_place_without_a_body_is_damaged(self) -> None:
        pages = await self.begin()
        (place,) = await _put(pages, 1, [b"one"])
        beyond = structs.replace(place, offset=1 << 40)
        elsewhere = structs.replace(place, page=99)
        for channel, wrong in ((1, beyond), (1, elsewhere), (2, place)):
            _check_refused(pages, channel, wrong)
            (damaged,) = await pages.check(channel, [wrong])
            assert damaged.place == wrong
            assert damaged.where
            assert damaged.reason
        corrupted = structs.replace(place, checksum=place.checksum ^ 1)
        assert [body.place for body in await pages.check(1, [place, corrupted])] == [corrupted]

    async def check_flush_without_changes_succeeds(self) -> None:
        pages = await self.begin()
        await pages.flush()
        places = await _put(pages, 1, [b"one"], sync=False)
        await pages.flush()
        await pages.flush(sync=False)
        assert await pages.check(1, places) == []

    async def check_closed_pages_refuse_all_calls(self) -> None:
        pages = await self.begin()
        await pages.reserve(1, [3, 3])
        pages.allocate(1, b"one")
        await pages.flush(sync=False)
        await pages.close()
        await pages.close()
        await raises(StorageFailed, pages.reserve(1, [3]))
        await raises(StorageFailed, pages.flush())
        await raises(StorageFailed, pages.release(1, []))
        try:
            pages.allocate(1, b"two")
        except StorageFailed:
            return
        raise AssertionError("closed pages allocate nothing")

    async def begin(self) -> Pages:
        """Return open pages without used slots."""
        pages = await self.open()
        await pages.restore({})
        return pages


async def _put(
    pages: Pages, channel: int, bodies: Sequence[bytes], *, sync: bool = True
) -> list[PageSlot]:
    """Store bodies, and return their places."""
    await pages.reserve(channel, [len(body) for body in bodies])
    places = [pages.allocate(channel, body) for body in bodies]
    await pages.flush(sync=sync)
    return places


def _check_refused(pages: Pages, channel: int, place: PageSlot) -> None:
    """Raise ``AssertionError`` if reading a place without a body raises no error."""
    try:
        pages.view(channel, place)
    except Damaged:
        return
    raise AssertionError(f"{place} has no body, but reading it raised no error")

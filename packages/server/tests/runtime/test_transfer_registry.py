"""Transfers belong to the session that began them, and end with it or when they are idle."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.errors import IllegalState, Unavailable
from penstock_server.runtime.transfer.transfer_registry import IDLE_US, Transfer, TransferRegistry


class Watch:
    """A clock that stands still."""

    def __init__(self) -> None:
        self.us = 0

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.now_us()


def begun(watch: Watch) -> TransferRegistry[Transfer]:
    return TransferRegistry("export", 2, watch, ends="has ended, or nobody read from it")


def test_only_the_session_that_began_a_transfer_can_continue_it() -> None:
    exports = begun(Watch())
    one = Transfer("ann")
    name = exports.add(one)

    assert name == "export-1"
    assert exports.find("ann", name) is one
    with pytest.raises(IllegalState, match="it has ended, or nobody read from it for 300 s"):
        exports.find("bob", name)


def test_the_number_of_transfers_is_limited() -> None:
    exports = begun(Watch())
    names = [exports.add(Transfer("ann")) for _ in range(2)]

    with pytest.raises(Unavailable, match="the limit of exports at the same time, 2, is reached"):
        exports.check_room()
    exports.remove(names[0])
    exports.check_room()
    assert exports.remove(names[0]) is None, "it is gone already"


def test_a_session_ends_only_its_transfers() -> None:
    exports = begun(Watch())
    name = exports.add(Transfer("ann"))
    bobs_export = exports.add(Transfer("bob"))

    exports.leave("ann")
    with pytest.raises(IllegalState):
        exports.find("ann", name)
    assert exports.find("bob", bobs_export).session == "bob"


def test_a_transfer_in_use_does_not_expire_and_its_idle_time_starts_at_the_end() -> None:
    watch = Watch()
    exports = begun(watch)
    transfer = Transfer("ann")
    exports.add(transfer)

    with exports.at_work(transfer):
        watch.us = IDLE_US + 1
        exports.expire()
        assert len(exports) == 1
    watch.us += IDLE_US
    exports.expire()
    assert len(exports) == 1
    watch.us += 1
    exports.expire()
    assert len(exports) == 0

"""Sessions of browsers: found while they last, and safe from forged requests."""

from __future__ import annotations

import pytest

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import AccessDenied, Damaged, StorageFailed
from penstock_core.vocabulary.ports import VersionedRecord
from penstock_server.runtime.access.logins import CSRF_HEADER, KEPT_PREFIX, Logins
from penstock_server.storage.memory import MemoryRegistry
from tests.loops import on_a_loop

ALICE = Principal("alice", "10.0.0.1", proof="password")
SECOND_US = 1_000_000


class HandClock:
    def __init__(self) -> None:
        self.us = SECOND_US

    def now_us(self) -> int:
        return self.us

    def steady_us(self) -> int:
        return self.now_us()


@pytest.fixture
def clock() -> HandClock:
    return HandClock()


@pytest.fixture
def logins(clock: HandClock) -> Logins:
    return Logins(clock, idle_s=10, total_s=25)


@on_a_loop
async def test_a_login_is_found_by_its_cookie_until_it_is_closed(logins: Logins) -> None:
    login = await logins.open(ALICE)
    assert logins.find(login.id) is login
    assert logins.find("guess") is None

    await logins.close(login.id)

    assert logins.find(login.id) is None


@on_a_loop
async def test_use_prolongs_a_login_up_to_its_total_time(logins: Logins, clock: HandClock) -> None:
    login = await logins.open(ALICE)
    for _ in range(2):
        clock.us += 9 * SECOND_US
        assert logins.find(login.id) is login

    clock.us += 9 * SECOND_US

    assert logins.find(login.id) is None


@on_a_loop
async def test_an_idle_login_ends(logins: Logins, clock: HandClock) -> None:
    login = await logins.open(ALICE)
    clock.us += 11 * SECOND_US

    assert logins.find(login.id) is None


@on_a_loop
async def test_a_login_ends_with_its_token(logins: Logins, clock: HandClock) -> None:
    login = await logins.open(Principal("alice", "h", proof="token", until_us=3 * SECOND_US))
    clock.us = 4 * SECOND_US

    assert logins.find(login.id) is None


@on_a_loop
async def test_a_request_of_another_site_does_not_know_the_value(logins: Logins) -> None:
    login = await logins.open(ALICE)
    logins.check_csrf(login, login.csrf)

    for token in ("", login.id, "ümlaut"):
        with pytest.raises(AccessDenied, match="X-CSRF-Token"):
            logins.check_csrf(login, token)


@on_a_loop
async def test_a_user_is_signed_out_everywhere(logins: Logins) -> None:
    mine, more = await logins.open(ALICE), await logins.open(ALICE)
    bobs_login = await logins.open(Principal("bob", "h"))

    logins.close_of("alice")

    assert logins.find(mine.id) is None
    assert logins.find(more.id) is None
    assert logins.find(bobs_login.id) is bobs_login


@on_a_loop
async def test_logins_differ_and_their_repr_has_no_secrets(logins: Logins) -> None:
    mine, more = await logins.open(ALICE), await logins.open(ALICE)

    assert len({mine.id, more.id, mine.csrf, more.csrf}) == 4
    assert repr(mine) == "BrowserLogin(alice@10.0.0.1)"


@on_a_loop
async def test_the_number_of_logins_is_bounded(clock: HandClock) -> None:
    logins = Logins(clock, idle_s=10, total_s=25, logins_max=2)
    first = await logins.open(ALICE)
    clock.us += SECOND_US
    second = await logins.open(ALICE)
    clock.us += SECOND_US
    third = await logins.open(ALICE)

    assert logins.find(first.id) is None
    assert logins.find(second.id) is second
    assert logins.find(third.id) is third


@on_a_loop
async def test_a_user_with_too_many_logins_loses_the_idlest_and_others_keep_theirs(
    clock: HandClock,
) -> None:
    logins = Logins(clock, of_user_max=2)
    bob = await logins.open(Principal("bob", "h"))
    first = await logins.open(ALICE)
    clock.us += 1
    second = await logins.open(ALICE)
    clock.us += 1
    assert logins.find(first.id) is first  # used later than the second
    clock.us += 1
    third = await logins.open(ALICE)

    kept = [login for login in (bob, first, second, third) if logins.find(login.id)]
    assert kept == [bob, first, third]
    assert len(logins) == 3


@on_a_loop
async def test_when_all_logins_are_used_the_user_with_the_most_loses_one(clock: HandClock) -> None:
    logins = Logins(clock, logins_max=4)
    bob = await logins.open(Principal("bob", "h"))  # the one that was not used for longest
    clock.us += 1
    many = [await logins.open(ALICE) for _ in range(3)]
    carol = await logins.open(Principal("carol", "h"))

    assert logins.find(bob.id) is bob
    assert logins.find(carol.id) is carol
    assert sum(logins.find(login.id) is not None for login in many) == 2


@on_a_loop
async def test_ended_logins_leave_no_memory_behind(logins: Logins, clock: HandClock) -> None:
    closed, ended = await logins.open(ALICE), await logins.open(Principal("bob", "h"))
    await logins.open(Principal("carol", "h"))
    await logins.close(closed.id)
    logins.close_of("carol")
    clock.us += 11 * SECOND_US
    assert logins.find(ended.id) is None

    assert len(logins) == 0
    assert logins.of_user == {}


# --- over a restart, and at the next owner -------------------------------------------------


def started(clock: HandClock, registry: MemoryRegistry, password: bytes | None = b"1") -> Logins:
    """Return the sessions of a process whose users have this password."""
    logins = Logins(clock, idle_s=10, total_s=25, registry=registry)
    logins.password_of = lambda user: password
    return logins


@on_a_loop
async def test_a_restart_keeps_sessions_and_what_they_need(clock: HandClock) -> None:
    registry = MemoryRegistry()
    login = await started(clock, registry).open(ALICE)

    again = started(clock, registry)
    await again.load()

    restored = again.find(login.id)
    assert restored is not None
    assert restored.principal == ALICE
    again.check_csrf(restored, login.csrf)
    with pytest.raises(AccessDenied, match=CSRF_HEADER):
        again.check_csrf(restored, login.id)


@on_a_loop
async def test_stored_logins_do_not_reveal_cookies(clock: HandClock) -> None:
    registry = MemoryRegistry()
    login = await started(clock, registry).open(ALICE)

    (key,) = await registry.list()
    record = await registry.get(key)

    assert key.startswith(KEPT_PREFIX)
    assert record is not None
    assert b"alice" in record.value
    assert login.id.encode() not in record.value
    assert login.csrf.encode() not in record.value


@on_a_loop
async def test_a_signed_out_login_does_not_return_after_a_restart(clock: HandClock) -> None:
    registry = MemoryRegistry()
    before = started(clock, registry)
    out, stays = await before.open(ALICE), await before.open(ALICE)
    await before.close(out.id)

    again = started(clock, registry)
    await again.load()

    assert again.find(out.id) is None
    assert again.find(stays.id) is not None


@pytest.mark.parametrize("now", [b"2", None], ids=["another password", "the user is gone"])
@on_a_loop
async def test_a_login_ends_with_its_password_even_if_the_end_could_not_be_stored(
    clock: HandClock, now: bytes | None
) -> None:
    registry = MemoryRegistry()
    before = started(clock, registry)
    login = await before.open(ALICE)

    again = started(clock, registry, password=now)
    await again.load()
    assert again.find(login.id) is None
    assert len(again) == 0
    before.password_of = lambda user: now
    assert before.find(login.id) is None


@on_a_loop
async def test_a_login_whose_password_changes_during_the_check_is_invalid(
    clock: HandClock,
) -> None:
    logins = started(clock, MemoryRegistry(), password=b"new")
    login = await logins.open(ALICE, b"old")

    assert logins.find(login.id) is None


@on_a_loop
async def test_a_restart_prolongs_nothing(clock: HandClock) -> None:
    registry = MemoryRegistry()
    before = started(clock, registry)
    idle, used = await before.open(ALICE), await before.open(ALICE)
    clock.us += 8 * SECOND_US
    assert await before.find_and_store_use(used.id) is used
    clock.us += 3 * SECOND_US

    again = started(clock, registry)
    await again.load()
    assert again.find(idle.id) is None
    assert again.find(used.id) is not None
    for _ in range(2):  # used all the time, until it is as old as a session may be
        clock.us += 7 * SECOND_US
        await again.find_and_store_use(used.id)
    assert again.find(used.id) is not None
    clock.us += SECOND_US
    assert again.find(used.id) is None


@on_a_loop
async def test_reading_pages_writes_next_to_nothing(clock: HandClock) -> None:
    registry = MemoryRegistry()
    logins = started(clock, registry)
    login = await logins.open(ALICE)
    (key,) = await registry.list()
    for _ in range(100):
        clock.us += SECOND_US // 20
        assert await logins.find_and_store_use(login.id) is login

    record = await registry.get(key)
    assert record is not None
    assert 1 < record.version <= 6


@on_a_loop
async def test_logins_that_the_previous_owner_still_writes_are_merged(clock: HandClock) -> None:
    registry = MemoryRegistry()
    before = started(clock, registry)
    ended_before, ended_here = await before.open(ALICE), await before.open(ALICE)
    now = started(clock, registry)
    await now.load()
    await before.close(ended_before.id)
    late = await before.open(ALICE)

    await now.close(ended_here.id)

    again = started(clock, registry)
    await again.load()
    for logins in (now, again):
        kept = [login for login in (ended_before, ended_here, late) if logins.find(login.id)]
        assert kept == [late]


class FailingRegistry(MemoryRegistry):
    fails = False

    async def cas(self, key: str, expected: int, value: bytes) -> int:
        if self.fails:
            raise StorageFailed("no space left")
        return await super().cas(key, expected, value)


@on_a_loop
async def test_a_login_that_cannot_be_stored_is_refused_and_others_continue(
    clock: HandClock,
) -> None:
    registry = FailingRegistry()
    logins = started(clock, registry)
    login = await logins.open(ALICE)
    registry.fails = True
    with pytest.raises(StorageFailed):
        await logins.open(ALICE)
    assert len(logins) == 1
    clock.us += 5 * SECOND_US
    assert await logins.find_and_store_use(login.id) is login
    with pytest.raises(StorageFailed):
        await logins.close(login.id)
    assert logins.find(login.id) is None

    registry.fails = False
    assert await logins.find_and_store_use("any") is None  # writes what is left to write
    again = started(clock, registry)
    await again.load()
    assert len(again) == 0


class DamagedRegistry(MemoryRegistry):
    async def get(self, key: str) -> VersionedRecord | None:
        raise Damaged(f"{key} is damaged")


@on_a_loop
async def test_users_can_sign_in_after_damage_to_stored_logins(clock: HandClock) -> None:
    registry = DamagedRegistry()
    await started(clock, registry).open(ALICE)
    again = started(clock, registry)
    await again.load()
    login = await again.open(ALICE)
    assert again.find(login.id) is login

    second_registry = MemoryRegistry()
    (key,) = await registry.list()
    await second_registry.cas(key, 0, b"no record")
    after = started(clock, second_registry)
    await after.load()
    login = await after.open(ALICE)
    last = started(clock, second_registry)
    await last.load()
    assert last.find(login.id) is not None

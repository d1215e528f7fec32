"""Sessions of browsers: found while they last, and safe from forged requests."""

from __future__ import annotations

import pytest

from penstock.core.access.rights import Principal
from penstock.core.vocabulary.errors import AccessDenied
from penstock.runtime.access import logins as module
from penstock.runtime.access.logins import Logins

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


def test_a_login_is_found_by_its_cookie_until_it_is_closed(logins: Logins) -> None:
    login = logins.open(ALICE)
    assert logins.find(login.id) is login
    assert logins.find("guess") is None

    logins.close(login.id)

    assert logins.find(login.id) is None


def test_use_prolongs_it_but_not_for_ever(logins: Logins, clock: HandClock) -> None:
    login = logins.open(ALICE)
    for _ in range(2):
        clock.us += 9 * SECOND_US
        assert logins.find(login.id) is login

    clock.us += 9 * SECOND_US

    assert logins.find(login.id) is None


def test_one_that_is_not_used_ends(logins: Logins, clock: HandClock) -> None:
    login = logins.open(ALICE)
    clock.us += 11 * SECOND_US

    assert logins.find(login.id) is None


def test_one_ends_with_the_token_it_came_from(logins: Logins, clock: HandClock) -> None:
    login = logins.open(Principal("alice", "h", proof="token", until_us=3 * SECOND_US))
    clock.us = 4 * SECOND_US

    assert logins.find(login.id) is None


def test_a_request_of_another_site_does_not_know_the_value(logins: Logins) -> None:
    login = logins.open(ALICE)
    logins.check_csrf(login, login.csrf)

    for given in ("", login.id, "ümlaut"):
        with pytest.raises(AccessDenied, match="X-CSRF-Token"):
            logins.check_csrf(login, given)


def test_a_user_is_signed_out_everywhere(logins: Logins) -> None:
    mine, more = logins.open(ALICE), logins.open(ALICE)
    other = logins.open(Principal("bob", "h"))

    logins.close_of("alice")

    assert logins.find(mine.id) is None
    assert logins.find(more.id) is None
    assert logins.find(other.id) is other


def test_no_two_are_alike_and_none_shows_its_secrets(logins: Logins) -> None:
    mine, more = logins.open(ALICE), logins.open(ALICE)

    assert len({mine.id, more.id, mine.csrf, more.csrf}) == 4
    assert repr(mine) == "BrowserLogin(alice@10.0.0.1)"


def test_there_is_an_end_to_how_many_are_kept(
    logins: Logins, clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGINS_MAX", 2)
    first = logins.open(ALICE)
    clock.us += SECOND_US
    second = logins.open(ALICE)
    clock.us += SECOND_US
    third = logins.open(ALICE)

    assert logins.find(first.id) is None
    assert logins.find(second.id) is second
    assert logins.find(third.id) is third


def test_a_user_who_signs_in_again_and_again_loses_the_idlest_and_nobody_else_does(
    clock: HandClock,
) -> None:
    logins = Logins(clock, of_user_max=2)
    bob = logins.open(Principal("bob", "h"))
    first = logins.open(ALICE)
    clock.us += 1
    second = logins.open(ALICE)
    clock.us += 1
    assert logins.find(first.id) is first  # used later than the second
    clock.us += 1
    third = logins.open(ALICE)

    kept = [each for each in (bob, first, second, third) if logins.find(each.id)]
    assert kept == [bob, first, third]
    assert len(logins) == 3


def test_when_all_are_taken_the_user_who_has_most_loses_one(
    clock: HandClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOGINS_MAX", 4)
    logins = Logins(clock)
    bob = logins.open(Principal("bob", "h"))  # the one that was not used for longest
    clock.us += 1
    many = [logins.open(ALICE) for _ in range(3)]
    carol = logins.open(Principal("carol", "h"))

    assert logins.find(bob.id) is bob
    assert logins.find(carol.id) is carol
    assert sum(logins.find(each.id) is not None for each in many) == 2


def test_users_who_have_gone_leave_nothing_behind(logins: Logins, clock: HandClock) -> None:
    closed, ended = logins.open(ALICE), logins.open(Principal("bob", "h"))
    logins.open(Principal("carol", "h"))
    logins.close(closed.id)
    logins.close_of("carol")
    clock.us += 11 * SECOND_US
    assert logins.find(ended.id) is None

    assert len(logins) == 0
    assert logins._of_user == {}

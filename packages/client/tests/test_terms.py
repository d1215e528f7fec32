"""The addresses a session tries in a cluster, and its timeouts, without a network."""

from __future__ import annotations

import pytest

from penstock.client.connection.terms import DEAD_AFTER_S, PING_AFTER_S, SessionTerms
from penstock.client.connection.urls import Address
from penstock_core.vocabulary.errors import Elsewhere
from penstock_core.wire.native import messages as wire

A, B, C = (Address(name, 9_000) for name in "abc")


def welcome(*nodes: Address, heartbeat_s: float = 2.0) -> wire.ClusterWelcome:
    return wire.ClusterWelcome(
        "i",
        "",
        "1",
        event_bytes_max=1,
        frame_bytes_max=2,
        heartbeat_s=heartbeat_s,
        nodes=tuple(map(str, nodes)),
    )


def owners(version: int, owner: Address | None, *nodes: Address) -> wire.Owners:
    owned = {} if owner is None else {0: str(owner)}
    return wire.Owners(version, owned, tuple(map(str, nodes)))


def terms_at(address: Address, *nodes: Address, version: int = 1) -> SessionTerms:
    """The terms of a session whose connection is the owner's."""
    terms = SessionTerms()
    assert next(terms.places([address])) == address
    terms.process_welcome(welcome(*nodes))
    terms.process_owners(owners(version, address, *nodes))
    return terms


def test_the_nodes_that_a_welcome_names_are_tried_behind_the_known_addresses() -> None:
    terms = terms_at(B, A, B, C)

    assert list(terms.places([B])) == [B, A, C]


def test_an_owner_that_one_names_is_tried_next_and_once() -> None:
    terms, tried = SessionTerms(), []

    for address in terms.places([A, B]):
        tried.append(address)
        terms.process_goodbye(wire.Redirect("elsewhere", "there", str(C)))

    assert tried == [A, C, B]


def test_whoever_has_fallen_silent_is_tried_last_even_if_a_node_still_names_it() -> None:
    terms, tried = terms_at(A, A, B, C), []
    assert terms.is_silent(6.0)

    for address in terms.places([A, B]):
        tried.append(address)
        if address == B:
            terms.process_goodbye(wire.Redirect("elsewhere", "there", str(A)))

    assert tried == [B, C, A]


def test_whoever_has_fallen_silent_is_not_tried_where_a_node_knows_that_nobody_serves() -> None:
    terms, tried = terms_at(A, A, B, C), []
    assert terms.is_silent(6.0)

    for address in terms.places([A, B]):
        tried.append(address)
        terms.process_goodbye(wire.Goodbye("elsewhere", "one of them will soon"))

    assert tried == [B, C]
    assert list(terms.places([A, B])) == [B, C, A], "nobody has answered at all"


def test_a_newer_owner_than_that_of_the_connection_is_gone_to_first() -> None:
    terms = terms_at(A, A, B, C)

    assert terms.note_owners(owners(2, C, A, B, C))
    assert list(terms.places([A])) == [C, B, A]


def test_what_is_no_news_moves_nobody() -> None:
    terms = terms_at(A, A, B, C, version=2)

    assert not terms.note_owners(owners(1, B)), "it knows less"
    assert not terms.note_owners(owners(2, A)), "it knows as much"
    assert not terms.note_owners(owners(3, None)), "nobody serves: there is nowhere to go"
    assert not terms.note_owners(owners(4, A)), "it was claimed again, by the same node"
    assert terms.note_owners(owners(5, B))


def test_a_node_that_calls_itself_otherwise_than_the_session_does_is_not_left_for_itself() -> None:
    terms = SessionTerms()
    next(terms.places([Address("localhost", 9_000)]))
    # A connection is notified before the session continues.
    terms.process_owners(owners(1, A, A, B))
    terms.process_welcome(welcome(A, B))

    assert terms.announced_owner == A
    assert not terms.note_owners(owners(2, A, A, B))


def test_in_a_cluster_a_lease_of_silence_is_too_much_and_looked_at_when_it_is_over() -> None:
    terms = terms_at(A, A, B)

    assert (terms.ping_after_s, terms.dead_after_s) == (2.0, 6.0)
    assert terms.check_after_s(0.0) == 2.0
    assert terms.check_after_s(5.5) == 0.5
    assert not terms.is_silent(5.9)
    assert terms.is_silent(6.0)


def test_a_realm_on_its_own_is_waited_for_as_ever() -> None:
    terms = terms_at(A, A, B)

    terms.process_welcome(wire.Welcome("i", "", "1", event_bytes_max=1, frame_bytes_max=2))

    assert (terms.ping_after_s, terms.dead_after_s) == (PING_AFTER_S, DEAD_AFTER_S)
    assert terms.check_after_s(25.0) == PING_AFTER_S
    assert not terms.is_silent(DEAD_AFTER_S)


def relayed(terms: SessionTerms, address: Address) -> bool:
    """Whether the session is to leave a node that welcomes it on behalf of another."""
    welcome = wire.ClusterWelcome(
        "i",
        "",
        "1",
        event_bytes_max=1,
        frame_bytes_max=2,
        heartbeat_s=2.0,
        nodes=(str(A), str(B)),
        node=str(A),
    )
    try:
        terms.accept(welcome)
    except Elsewhere:
        return True
    return False


def test_a_session_that_is_relayed_tries_the_owner_itself_and_then_stays_relayed() -> None:
    terms, tried = SessionTerms(), []

    for address in terms.places([B]):
        tried.append(address)
        if address == B and not relayed(terms, B):
            break  # welcome

    assert tried == [B, A, B]
    assert not relayed(terms, B), "the owner is not tried again"


def test_a_session_that_has_tried_the_owner_in_vain_is_relayed_by_the_next_node() -> None:
    terms, tried = SessionTerms(), []

    for address in terms.places([A, B]):
        tried.append(address)
        if address == B and not relayed(terms, B):
            break  # welcome

    assert tried == [A, B, B]


def test_a_session_whose_owner_has_fallen_silent_is_relayed_to_it_in_the_end() -> None:
    """The owner is cut off from its clients, and serves all others."""
    terms, tried = terms_at(A, A, B), []
    assert terms.is_silent(DEAD_AFTER_S)

    for address in terms.places([A, B]):
        tried.append(address)
        if address == B and not relayed(terms, B):
            break  # welcome

    assert tried == [B, A, B]
    assert terms.current_address == B


def test_a_session_at_an_address_that_no_node_calls_its_own_stays_there() -> None:
    terms = SessionTerms()

    next(terms.places([C]))

    assert not relayed(terms, C), "it may be a load balancer, before which no node is reached"


def pauses(terms: SessionTerms, session: str, waited_s: float) -> list[float]:
    return [terms.pause_s(session, attempt, waited_s) for attempt in range(40)]


@pytest.mark.parametrize("is_clustered", [False, True])
def test_sessions_that_were_cut_off_together_do_not_come_back_together(is_clustered: bool) -> None:
    terms = terms_at(A, A, B) if is_clustered else SessionTerms()
    sessions = [f"{number:032x}" for number in range(300)]

    first = [terms.pause_s(session, 5, 0.5) for session in sessions]

    assert len(set(first)) == 300
    assert max(first) <= (0.25 if is_clustered else 2.0)
    assert max(first) > 1.8 * min(first)


def test_a_pause_grows_with_the_time_that_a_session_has_waited() -> None:
    terms = terms_at(A, A, B)

    soon, late = pauses(terms, "a", 1.0), pauses(terms, "a", 60.0)

    assert max(soon) <= 0.25, "another node takes over within seconds"
    assert 1.0 <= min(late[10:]) <= max(late) <= 2.0

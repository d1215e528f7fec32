"""The preface of a relayed connection: who the client is, signed for one process."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock_core.vocabulary.errors import RemoteProtocolViolation
from penstock_core.wire.relay_preface import (
    HEAD_BYTES,
    MARK_BYTES,
    PREFACE_BYTES_MAX,
    SIGNATURE,
    VALID_S,
    Place,
    RelayOrigin,
    may_be_preface,
    preface_bytes,
    read_preface,
    relay_preface,
    secret_name,
)

SECRET = b"s" * 32
NOW_S = 1_800_000_000
ORIGIN = RelayOrigin(Place("10.0.0.7", 40_000), Place("10.0.0.2", 5_672), "n2")
SENT = relay_preface(ORIGIN, SECRET, process="start 1", now_s=NOW_S)


def read(data: bytes, *, secret: bytes = SECRET, process: str = "start 1", at_s: int = 0) -> object:
    return read_preface(data, secret, process=process, now_s=NOW_S + at_s)


@given(
    client=st.ip_addresses(),
    reached=st.ip_addresses(),
    port=st.integers(0, 65_535),
    node=st.text(max_size=40),
)
def test_who_the_client_is_arrives_as_it_was_said(
    client: object, reached: object, port: int, node: str
) -> None:
    origin = RelayOrigin(Place(plain(client), port), Place(plain(reached), 9_000), node)

    sent = relay_preface(origin, SECRET, process="p", now_s=NOW_S)

    assert len(sent) == preface_bytes(sent[:HEAD_BYTES]) <= PREFACE_BYTES_MAX
    assert read(sent, process="p") == origin


def plain(host: object) -> str:
    """Return the text of an IPv4 address, also if it was sent as an IPv6 address."""
    return str(getattr(host, "ipv4_mapped", None) or host)


def test_a_preface_has_the_form_of_the_proxy_protocol() -> None:
    """Other programs that know the protocol read the addresses in it."""
    assert SENT.startswith(SIGNATURE)
    assert SENT[12:14] == b"\x21\x11"
    assert SENT[16:28] == bytes((10, 0, 0, 7, 10, 0, 0, 2)) + b"\x9c\x40\x16\x28"


@given(at=st.integers(0, len(SENT) - 1), bit=st.integers(0, 7))
def test_whatever_bit_is_changed_it_is_refused(at: int, bit: int) -> None:
    forged = bytearray(SENT)
    forged[at] ^= 1 << bit

    with pytest.raises(RemoteProtocolViolation):
        read(bytes(forged))


@given(length=st.integers(0, len(SENT) - 1))
def test_a_preface_that_was_cut_is_refused(length: int) -> None:
    with pytest.raises(RemoteProtocolViolation):
        read(SENT[:length])


def test_one_without_a_signature_is_refused_and_so_is_one_with_another_secret() -> None:
    unsigned = SIGNATURE + b"\x21\x11\x00\x0c" + SENT[16:28]

    for sent, secret in ((unsigned, SECRET), (SENT, b"t" * 32)):
        with pytest.raises(RemoteProtocolViolation, match="signed"):
            read(sent, secret=secret)


def test_one_for_another_process_or_of_another_time_is_refused() -> None:
    with pytest.raises(RemoteProtocolViolation, match="another process"):
        read(SENT, process="start 2")
    for at_s in (-VALID_S - 1, VALID_S + 1):
        with pytest.raises(RemoteProtocolViolation, match="in the last 120 s"):
            read(SENT, at_s=at_s)
    assert read(SENT, at_s=VALID_S) == ORIGIN


def test_no_preface_is_made_a_second_time() -> None:
    again = relay_preface(ORIGIN, SECRET, process="start 1", now_s=NOW_S)

    assert again[-MARK_BYTES:] != SENT[-MARK_BYTES:]


def test_a_secret_has_a_name_that_others_do_not_have() -> None:
    assert secret_name(SECRET) == secret_name(bytes(SECRET)) != secret_name(b"t" * 32)
    assert SECRET.decode() not in secret_name(SECRET)


def test_the_first_bytes_tell_a_preface_and_how_long_it_is() -> None:
    assert all(may_be_preface(SENT[:n]) for n in range(len(SENT)))
    assert not any(
        map(may_be_preface, (b"AMQP", b"PENSTCK\x01", b"\r\nGET / HTTP/1.1", b"\x16\x03"))
    )
    assert preface_bytes(SENT[: HEAD_BYTES - 1]) == 0
    with pytest.raises(RemoteProtocolViolation, match="65551 bytes"):
        preface_bytes(SIGNATURE + b"\x21\x11\xff\xff")

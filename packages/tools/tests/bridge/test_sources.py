"""URLs of sources."""

from __future__ import annotations

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_tools.bridge.sources import parse_source


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("http://host/queue", "not the URL of a source"),
        ("amqp://host", "not the URL of a source"),
        ("amqp://host:port/queue", "must be a number"),
        ("amqp://me:hush@host/queue", "unencrypted"),
        ("amqps://me:hush@host/queue?token=hush", "ca=FILE is allowed"),
        ("amqp://host/queue?version=5", "ca=FILE is allowed"),
        ("mqtt://host", "not the URL of a source"),
        ("mqtt://me:hush@host/a", "unencrypted"),
        ("mqtt://host/a/#/b", "wildcard # must be the last level"),
        ("mqtt://host/a?version=4", "allowed are 5 and 3.1.1"),
        ("mqtt://host/a?qos=1", "ca=FILE and version= are allowed"),
    ],
)
def test_urls_that_name_no_source_are_refused(url: str, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said) as refused:
        parse_source(url)

    assert "hush" not in str(refused.value)


@pytest.mark.parametrize(
    ("url", "address", "port"),
    [
        ("amqp://host/queue", "queue", 5_672),
        ("amqps://host//queues/a%20b", "/queues/a b", 5_671),
        ("amqp://host/queue#1", "queue#1", 5_672),
        ("mqtt://host/#", "#", 1_883),
        ("mqtts://host:9/a/+/b/#?ca=x", "a/+/b/#", 9),
        ("mqtts://host//a?version=3.1.1", "/a", 8_883),
    ],
)
def test_urls_name_a_queue_or_a_topic_filter(url: str, address: str, port: int) -> None:
    source = parse_source(url)

    assert (source.address, source.port, source.host) == (address, port, "host")


def test_passwords_are_not_shown() -> None:
    source = parse_source("mqtts://me@host/a", "hush")

    assert (source.user, source.password) == ("me", "hush")
    assert "hush" not in f"{source} {source!r}"


def test_a_missing_file_of_authorities_is_named() -> None:
    with pytest.raises(InvalidArgument, match="the file missing"):
        parse_source("mqtts://host/a?ca=missing.pem").tls_context()

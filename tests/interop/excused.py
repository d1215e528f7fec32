"""Failures of clients that handovers of the owner explain, each with what AMQP or the client does
not define there. All other failures count, even while the owner moves.

An AMQP client is not told where the new owner is: its connection ends. It then loses unsettled
deliveries, its transactions, and everything that it does not create again by itself."""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct


class Excuse(Struct, frozen=True):
    """A failure of some tests that a handover explains."""

    tests: str
    """A regular expression for their full names."""
    failure: str
    """A regular expression that is found in the text of the failure."""
    why: str


EXCUSES: Final = (
    Excuse(
        r"\w+",  # their names have no dots
        r"the connection ended",
        "rhea connects with reconnect: false, so that a test sees one connection: it ends with the "
        "owner",
    ),
    Excuse(
        r"proton\..*",
        r"amqp:connection:forced|ConnectionClosed|ConnectionException.*[Dd]isconnected",
        "Proton's BlockingConnection does not connect again: it ends with the owner",
    ),
    Excuse(
        r"penstock\.interop\.QueueTest\.(inOrderAndOnce|competingConsumersShareTheWork)",
        r"expected:<.*m\d*.*> but was:<.*m\d|expected null, but was:<|once",
        "the test counts on once. AMQP does not confirm accepted to who has said it: where it is "
        "lost with the connection, the message is given again",
    ),
    Excuse(
        r"penstock\.interop\.QueueTest\.asynchronousSendsAreConfirmed",
        r"expected:<.*m\d*.*> but was:<.*m\d",
        "Qpid JMS sends again what had no answer when its connection ended, and AMQP has no name "
        "for it by which it would be stored once; what was received may be given again besides",
    ),
    Excuse(
        r"penstock\.interop\.QueueTest\.(aCommitShowsEverythingAtOnce"
        r"|aRollbackSendsNothingAndAcknowledgesNothing|aTransactionMovesBetweenQueues)",
        r"TransactionRolledBack|[Tt]ransaction.*(in doubt|rolled back)",
        "an open transaction ends with its connection, and Qpid JMS says so at the commit",
    ),
    Excuse(
        r"penstock\.interop\.TopicTest\.aClientIdIsTakenOnce",
        r"InvalidClientIDRuntimeException to be thrown, but nothing was thrown",
        "the first client's connection has ended with the owner: until it is back, its name is "
        "free, and the second one may take it",
    ),
)


def excuse_of(test: str, failure_text: str) -> str:
    """Return why a test may fail with this text while the owner moves; empty if it may not."""
    for excuse in EXCUSES:
        if re.fullmatch(excuse.tests, test) and re.search(excuse.failure, failure_text, re.DOTALL):
            return excuse.why
    return ""

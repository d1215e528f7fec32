"""Failures of clients that the moves of an owner are a reason for, each with what AMQP or the
client leaves open there. Whatever else fails has failed, also while the owner moves.

A client of AMQP is not told where another owner is: its connection ends. What it loses with that is
what it has not settled, its transactions, and all that it does not make anew by itself.
"""

from __future__ import annotations

import re
from typing import Final

from msgspec import Struct


class Excuse(Struct, frozen=True):
    """Some failures of some tests."""

    tests: str
    """A pattern of their whole names."""
    said: str
    """A pattern that is in what they fail with."""
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


def excuse_of(test: str, said: str) -> str:
    """Why a test may fail with this while the owner moves; nothing: it may not."""
    for excuse in EXCUSES:
        if re.fullmatch(excuse.tests, test) and re.search(excuse.said, said, re.DOTALL):
            return excuse.why
    return ""

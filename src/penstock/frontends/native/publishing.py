"""What a connection publishes: at once, staged before, or in a transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from penstock.api.publishing import Published
from penstock.api.transactions import TransactionInfo
from penstock.core.access.name_owners import owned
from penstock.core.vocabulary.errors import InvalidEvent, RemoteProtocolViolation
from penstock.core.vocabulary.messages import Spans
from penstock.runtime.store.bodies import Body
from penstock.runtime.writer.removals import Leaving
from penstock.runtime.writer.transactions import Part
from penstock.wire.native import messages as wire

if TYPE_CHECKING:
    from penstock.frontends.native.connection import Connection


class Publications:
    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._realm = connection.realm

    def publish(self, message: wire.PublishEvents, body: memoryview) -> None:
        """Store events; answered with their ids."""
        connection, size = self._connection, len(body)

        def reply(span: Any, error: BaseException | None) -> None:
            connection.listener.pending_bytes -= size
            if error is None:
                answer = Published(span[0], span[1] - span[0])
                connection.send(wire.Done(message.request, answer))
            else:
                connection.fail(message.request, error)

        connection.listener.pending_bytes += size
        try:
            self._realm.publish(
                message.channel,
                connection.bodies(message.schema, message.sizes, body),
                owned(message.producer, connection.owner),
                message.sequence,
                reply,
                publisher=connection.publisher,
            )
        except Exception as error:  # noqa: BLE001  what nobody foresaw costs this request alone
            reply(None, error)

    def stage(self, message: wire.StageEvents, body: memoryview) -> None:
        """Put events aside."""
        connection = self._connection
        try:
            bodies = connection.bodies(message.schema, message.sizes, body)
            self._realm.digest(bodies)
            self._realm.stages.put(owned(message.stage, connection.owner), message.channel, bodies)
        except Exception as error:  # noqa: BLE001  what nobody foresaw costs this request alone
            connection.fail(message.request, error)
        else:
            connection.send(wire.Done(message.request))

    def commit_stages(self, message: wire.CommitStages | wire.CommitStagedParts) -> None:
        """Publish what was staged, in one step; answered with the ids."""
        if isinstance(message, wire.CommitStagedParts):
            self._commit_parts(message)
            return
        realm, connection = self._realm, self._connection
        stages = self._own(message.stages)

        def reply(span: Any, error: BaseException | None) -> None:
            if error is None:
                realm.stages.committed(stages)
                answer = Published(span[0], span[1] - span[0])
                connection.send(wire.Done(message.request, answer))
            else:
                connection.fail(message.request, error)

        realm.commit(
            message.channel,
            stages,
            owned(message.producer, connection.owner),
            message.sequence,
            reply,
            publisher=connection.publisher,
        )

    def _commit_parts(self, message: wire.CommitStagedParts) -> None:
        realm, connection = self._realm, self._connection
        parts = [(channel, self._own(stages)) for channel, stages in message.parts]

        def reply(spans: Any, error: BaseException | None) -> None:
            if error is None:
                for _, stages in parts:
                    realm.stages.committed(stages)
                if (permits := connection.permits) is not None:
                    asked = {channel for channel, _ in parts}
                    spans = tuple(each for each in spans if permits.may_hear_of(each[0], asked))
                answer = TransactionInfo("committed", spans)
                connection.send(wire.Done(message.request, answer))
            else:
                connection.fail(message.request, error)

        producer = owned(message.producer, connection.owner)
        realm.transactions.commit_staged(
            parts, producer, message.sequence, reply, connection.publisher
        )

    def drop_stages(self, message: wire.DropStages) -> None:
        """Forget what was staged."""
        self._realm.stages.drop(self._own(message.stages))
        self._connection.send(wire.Done(message.request))

    def commit_transaction(self, message: wire.CommitTransaction, body: memoryview) -> None:
        """Publish all parts of a transaction, in one step; answered with the ids by store."""
        realm, connection, size = self._realm, self._connection, len(body)

        def reply(spans: Any, error: BaseException | None) -> None:
            connection.listener.pending_bytes -= size
            if error is None:
                for part in message.parts:
                    realm.stages.drop(self._own(part.stages))
                answer = TransactionInfo("committed", spans)
                connection.send(wire.Done(message.request, answer))
            else:
                connection.fail(message.request, error)

        connection.listener.pending_bytes += size
        try:
            parts = self._parts(message, body)
            leaving = [
                Leaving(each.channel, checked(each.redriven), checked(each.purged))
                for each in message.leaving
            ]
        except RemoteProtocolViolation:
            connection.listener.pending_bytes -= size
            raise
        except Exception as error:  # noqa: BLE001  what nobody foresaw costs this request alone
            reply(None, error)
            return
        realm.transactions.commit(
            owned(message.transaction, connection.owner),
            parts,
            reply,
            connection.publisher,
            leaving=leaving,
        )

    def _own(self, names: Sequence[str]) -> list[str]:
        """Names of stages as those of whoever asks."""
        return [owned(name, self._connection.owner) for name in names]

    def _parts(self, message: wire.CommitTransaction, body: memoryview) -> list[Part]:
        """The parts with their batches, checked. Raises ``InvalidEvent``, ``EventTooLarge``."""
        found: list[Part] = []
        at = 0
        for part in message.parts:
            bodies: list[Body] = []
            if part.sizes:
                end = at + sum(part.sizes)
                bodies = self._connection.bodies(part.schema, part.sizes, body[at:end])
                at = end
            found.append(Part(part.channel, bodies, self._own(part.stages)))
        if at != len(body):
            raise InvalidEvent(f"batches of {at} bytes in a body of {len(body)}")
        return found


def checked(spans: Spans) -> Spans:
    """Ranges of ids a client names. Raises ``RemoteProtocolViolation`` for one that has none."""
    for first, end in spans:
        if first >= end:
            raise RemoteProtocolViolation(f"a range of ids from {first} to {end}")
    return spans

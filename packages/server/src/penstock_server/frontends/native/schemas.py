"""The schemas that a client has announced, and decoding of the batches that use them."""

from __future__ import annotations

from penstock_core.bounds import SCHEMAS_BYTES_MAX
from penstock_core.columns.events.check import check_body
from penstock_core.columns.events.single_event import MESSAGE_BYTES_MAX, codec_in_message
from penstock_core.columns.schema.ipc import batch_from, schema_from
from penstock_core.columns.schema.layout import BODY_ROWS_MAX
from penstock_core.vocabulary.errors import InvalidArgument, InvalidEvent, RemoteProtocolViolation
from penstock_server.frontends.shared.buffers import HeldBytes
from penstock_server.runtime.store.bodies import Body

SCHEMAS_MAX = 10_000
"""Maximum number of schemas that a connection may announce."""
USER_SCHEMAS_BYTES_MAX = 256 << 20
"""Limit on the bytes of the schemas that all connections of one user may announce, if no other user
has announced schemas. In general, a user may announce half of the bytes that are free."""
SMALL_SCHEMAS_BYTES = 1 << 20
"""Bytes of the schemas of each connection that are not counted."""


class SchemaTable:
    """The schemas that the client has announced on one connection."""

    def __init__(self) -> None:
        self._schemas: dict[int, bytes] = {}
        self._size = 0
        self.held: HeldBytes | None = None
        """Counts the schemas for the user of the connection, once the user is known."""

    def learn(self, number: int, schema: bytes) -> None:
        """Register a schema. Raises ``RemoteProtocolViolation`` if the connection has too many, or
        the bytes are not a schema."""
        if len(self._schemas) >= SCHEMAS_MAX:
            raise RemoteProtocolViolation(
                f"the connection has announced more than {SCHEMAS_MAX} schemas; publish events of "
                f"the same kind together, or open another session"
            )
        size = self._size + len(schema) - len(self._schemas.get(number, b""))
        if size > SCHEMAS_BYTES_MAX:
            raise RemoteProtocolViolation(
                f"the connection has announced schemas of {size} bytes; at most "
                f"{SCHEMAS_BYTES_MAX} are allowed: publish events of the same kind together, or "
                f"open another session"
            )
        if self.held is not None and not self.held.fits(size):
            raise RemoteProtocolViolation(
                f"the {size} bytes of schemas on this connection, together with those on the other "
                f"connections of the user, exceed the user's share of at most "
                f"{USER_SCHEMAS_BYTES_MAX} bytes: publish events of the same kind together, or "
                f"close connections"
            )
        # The result is not used: the call refuses bytes that are not a schema.
        schema_from(schema)
        self._schemas[number] = schema
        self._size = size

    def close(self) -> None:
        """Release the counted bytes, because the connection has ended."""
        if self.held is not None:
            self.held.close()

    def bodies(self, schema: int, sizes: tuple[int, ...], body: memoryview) -> list[Body]:
        """Return the checked batches of a frame. Raises ``InvalidArgument``, ``InvalidEvent``."""
        encoded = self._schemas.get(schema)
        if encoded is None:
            raise InvalidArgument(f"schema {schema} was never sent on this connection")
        if sum(sizes) != len(body) or min(sizes, default=1) <= 0:
            raise InvalidEvent(
                f"the request declares batches of {sum(sizes)} bytes, but its body has {len(body)}"
            )
        # A single event in the form of a codec is checked without building a record batch.
        form = codec_in_message(encoded)
        if form is not None and len(sizes) == 1:
            message = bytes(body) if len(body) <= MESSAGE_BYTES_MAX else b""
            if (digest := form.digest_of(message)) is not None:
                return [Body(message, None, encoded, known_digest=digest, names=form.names)]
        arrow = schema_from(encoded)
        bodies, offset, rows = [], 0, 0
        rows_max = max(BODY_ROWS_MAX, len(body))
        for size in sizes:
            part = body[offset : offset + size]
            batch = batch_from(part, arrow)
            check_body(batch)
            if batch.num_rows == 0:
                raise InvalidEvent("a batch has no events; each must have at least one")
            bodies.append(Body(part, batch, encoded))
            offset += size
            rows += batch.num_rows
            if rows > rows_max:  # batches of nulls take few bytes, so bytes do not limit rows
                raise InvalidEvent(
                    f"batches of {len(body)} bytes have {rows} events or more; publish at most "
                    f"{rows_max} events of this size at once"
                )
        return bodies

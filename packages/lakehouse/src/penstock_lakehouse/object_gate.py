"""The object gate: files of tables for clients that speak S3, read only (SEM B5).

It supports HEAD and GET of a whole object or a range of it. A request is signed with the key of a
loaded table, and can read only the files of that table.
"""

from __future__ import annotations

from functools import partial
from typing import Final
from urllib.parse import unquote
from xml.sax.saxutils import escape

from penstock_core.vocabulary.errors import AccessDenied, PenstockError
from penstock_lakehouse.channel_tables import tables_of
from penstock_lakehouse.file_store import BUCKET
from penstock_lakehouse.signatures import check_signature, signature_of
from penstock_server.frontends.http.doors import FileRequest, ServedFile

_CODES: Final = {
    400: "InvalidRequest",
    401: "SignatureDoesNotMatch",
    403: "AccessDenied",
    404: "NoSuchKey",
    405: "MethodNotAllowed",
    429: "SlowDown",
    503: "SlowDown",
}
_STATUSES: Final = {401: 403, 410: 404, 429: 503}
"""Statuses of the API that S3 clients would misunderstand, each with the status of S3 that replaces
it. S3 clients repeat a request that is answered with 503."""


class ObjectGate:
    """Serves the files of all tables to clients with a valid key."""

    async def find(self, request: FileRequest) -> ServedFile:
        """Return the requested file if the key that signed the request may read it.

        Raises ``AuthenticationFailed`` if the signature is not valid, ``AccessDenied`` if the key
        has ended, and ``NameDoesNotExist`` if the table has no such file.
        """
        realm = request.service.realm
        signature = signature_of(request.headers.get("authorization", ""))
        tables = tables_of(realm)
        grant = tables.grant_of(signature.key)
        if grant is None:
            raise AccessDenied(
                "the temporary access key of this table is no longer valid; load the table again"
            )
        check_signature(
            signature,
            grant.secret,
            request.method,
            path=request.path,
            query=request.query,
            headers=request.headers,
            now_us=realm.clock.now_us(),
        )
        # The user may have been deleted since the table was loaded (SEM B5).
        realm.access.check_still(grant.reader, realm.clock.now_us())
        name = unquote(request.path).removeprefix(f"/{BUCKET}/")
        file = tables.file_of(grant, name)
        return ServedFile(
            file.size,
            f'"{file.name}"',
            modified_us=grant.snapshot.made_us,
            read=partial(tables.read, file),
            reader=grant.reader,
        )

    def refusal(
        self, request: FileRequest, status: int, error: PenstockError
    ) -> tuple[int, str, bytes]:
        """Return the answer to a refused request, in the XML of S3."""
        code = _CODES.get(status, "InternalError")
        document = (
            '<?xml version="1.0" encoding="UTF-8"?>'
            f"<Error><Code>{code}</Code><Message>{escape(str(error))}</Message>"
            f"<Resource>{escape(request.path[:1_024])}</Resource></Error>"
        )
        return _STATUSES.get(status, status), "application/xml", document.encode()


DOOR: Final = ObjectGate()

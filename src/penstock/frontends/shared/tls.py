"""TLS for front ends: one context for the life of the process, whose files can be read again."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock.core.vocabulary.errors import InvalidArgument


class Tls:
    """The realm's certificate, and whose client certificates it believes (SEM A5)."""

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str = "",
        *,
        client_required: bool = False,
        client_revoked: str = "",
    ) -> None:
        """PEM files; ``client_ca`` has the authorities of client certificates, ``client_revoked``
        their revocation lists. Raises ``InvalidArgument`` naming the file that does not do."""
        self._files = (certificate, key, client_ca)
        self._client_revoked = client_revoked
        self.revoked: frozenset[tuple[str, ...]] = frozenset()
        """Certificates that are on a list, as ``penstock.runtime.access.access.issued_as`` has
        them."""
        self._client_required = client_required
        self._current = self._made()
        self.context = self._made()
        """For listeners: always the same object, with the newest files behind it."""
        # Each handshake begins here and goes on with what was read last.
        self.context.sni_callback = self._take_current

    def reload(self) -> None:
        """Use the files as they are now, for new connections; those there are go on.

        Raises ``InvalidArgument``: the old ones stay in use.
        """
        self._current = self._made()

    def _take_current(
        self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = self._current

    def _made(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # A session resumed from a ticket would go on with a certificate believed no more.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        _read("the certificate", certificate, lambda: context.load_cert_chain(certificate, key))
        if client_ca:
            _read(
                "the client authorities",
                client_ca,
                lambda: context.load_verify_locations(client_ca),
            )
            context.verify_mode = ssl.CERT_REQUIRED if self._client_required else ssl.CERT_OPTIONAL
            self._read_revoked(context)
        elif self._client_revoked:
            raise InvalidArgument(
                "listen.tls_client_revoked needs listen.tls_client_ca, the authorities that "
                "issued these lists"
            )
        elif self._client_required:
            raise InvalidArgument(
                "listen.tls_client_required needs listen.tls_client_ca, the authorities that "
                "client certificates are checked against"
            )
        return context

    def _read_revoked(self, context: ssl.SSLContext) -> None:
        """Have handshakes look at the lists, and keep them for sessions there are."""
        file = self._client_revoked
        if not file:
            self.revoked = frozenset()
            return
        what = "the revocation lists"
        _read(what, file, lambda: context.load_verify_locations(file))
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        found: list[tuple[str, ...]] = []
        _read(what, file, lambda: found.extend(_listed(Path(file).read_bytes())))
        self.revoked = frozenset(found)


def _listed(lists: bytes) -> Iterator[tuple[str, ...]]:
    from cryptography import x509

    begin = b"-----BEGIN X509 CRL-----"
    parts = lists.split(begin)[1:]
    if not parts:
        raise ValueError("it contains no X509 CRL")
    for part in parts:
        each = x509.load_pem_x509_crl(begin + part)
        issuer = sorted(str(name.value) for name in each.issuer)
        yield from ((f"{entry.serial_number:X}", *issuer) for entry in each)


def _read(what: str, file: str, load: Any) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise InvalidArgument(f"{what} for TLS ({file}) cannot be used: {error}") from error

"""TLS for front ends: one context for the life of the process, whose files can be reloaded."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock_core.vocabulary.errors import InvalidArgument


class Tls:
    """The realm's certificate, and the authorities of client certificates (SEM A5)."""

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str = "",
        *,
        client_required: bool = False,
        client_revoked: str = "",
    ) -> None:
        """Load PEM files: ``client_ca`` has the authorities of client certificates,
        ``client_revoked`` their revocation lists. Raises ``InvalidArgument``, which names the
        unusable file."""
        self._files = (certificate, key, client_ca)
        self._client_revoked = client_revoked
        self.revoked: frozenset[tuple[str, ...]] = frozenset()
        """Revoked certificates, as ``penstock_server.runtime.access.access.issued_as`` gives
        them."""
        self._client_required = client_required
        self.ends_us = 0
        """When the realm's certificate ends, in microseconds since 1970."""
        self._current = self._made()
        self.context = self._made()
        """The context for listeners: always the same object, which uses the newest files."""
        # Each handshake begins with this context, and switches to the one loaded last.
        self.context.sni_callback = self._take_current

    def reload(self) -> None:
        """Load the files again for new connections; existing connections go on.

        Raises ``InvalidArgument``: the old files stay in use.
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
        # A session resumed from a ticket would keep a certificate that is no longer trusted.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        _read("the certificate", certificate, lambda: context.load_cert_chain(certificate, key))
        self.ends_us = _ends_us(Path(certificate).read_bytes())
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
        """Make handshakes check the revocation lists, and keep them for open sessions."""
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


def _ends_us(certificate: bytes) -> int:
    """When the first certificate of a PEM file ends: those that follow are of its authorities."""
    from cryptography import x509

    own = x509.load_pem_x509_certificates(certificate)[0]
    return int(own.not_valid_after_utc.timestamp()) * 1_000_000


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

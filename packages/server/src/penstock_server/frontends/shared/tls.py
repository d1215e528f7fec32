"""TLS for front ends, with one context for the life of the process and reloadable files."""

from __future__ import annotations

import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from penstock_core.vocabulary.errors import InvalidArgument


class Tls:
    """The realm's certificate and the authorities of client certificates (SEM A5)."""

    def __init__(
        self,
        certificate: str,
        key: str,
        client_ca: str = "",
        *,
        client_required: bool = False,
        client_revoked: str = "",
    ) -> None:
        """Load PEM files. ``client_ca`` has the authorities of client certificates,
        ``client_revoked`` their revocation lists. Raises ``InvalidArgument``, whose text names the
        unusable file."""
        self._files = (certificate, key, client_ca)
        self._client_revoked = client_revoked
        self.revoked: frozenset[tuple[str, ...]] = frozenset()
        """Revoked certificates, in the form of
        ``penstock_server.runtime.access.access.issued_as``."""
        self._client_required = client_required
        self.expires_us = 0
        """Time at which the realm's certificate expires, in microseconds since 1970."""
        self._current = self._new_context()
        self.context = self._new_context()
        """The context for listeners. It is always the same object, and uses the newest files."""
        # Each handshake begins with this context, and the callback switches to the newest one.
        self.context.sni_callback = self._switch_to_current

    def reload(self) -> None:
        """Load the files again for new connections; existing connections stay open.

        Raises ``InvalidArgument`` if a file is not valid; the old files then stay in use.
        """
        self._current = self._new_context()

    def _switch_to_current(
        self, connection: ssl.SSLObject, name: str | None, context: ssl.SSLContext
    ) -> None:
        connection.context = self._current

    def _new_context(self) -> ssl.SSLContext:
        certificate, key, client_ca = self._files
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        # Without tickets, because a session resumed from a ticket would skip the check of a revoked
        # certificate.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        _read("the certificate", certificate, lambda: context.load_cert_chain(certificate, key))
        self.expires_us = _expires_us(Path(certificate).read_bytes())
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
                "listen.tls_client_revoked requires listen.tls_client_ca, the authorities that "
                "issued these lists"
            )
        elif self._client_required:
            raise InvalidArgument(
                "listen.tls_client_required requires listen.tls_client_ca, the authorities that "
                "verify client certificates"
            )
        return context

    def _read_revoked(self, context: ssl.SSLContext) -> None:
        """Load the revocation lists for handshakes, and store them for checks of open sessions."""
        file = self._client_revoked
        if not file:
            self.revoked = frozenset()
            return
        what = "the revocation lists"
        _read(what, file, lambda: context.load_verify_locations(file))
        # Lists for intermediate authorities are not required.
        context.verify_flags |= ssl.VERIFY_CRL_CHECK_LEAF
        revoked: list[tuple[str, ...]] = []
        _read(what, file, lambda: revoked.extend(_revoked_in(Path(file).read_bytes())))
        self.revoked = frozenset(revoked)


def _expires_us(certificate: bytes) -> int:
    """Return the expiry of the first certificate in a PEM file, in microseconds since 1970. The
    other certificates in the file belong to its authorities."""
    from cryptography import x509

    first = x509.load_pem_x509_certificates(certificate)[0]
    return int(first.not_valid_after_utc.timestamp()) * 1_000_000


def _revoked_in(lists: bytes) -> Iterator[tuple[str, ...]]:
    """Yield the serial number and the issuer of each revoked certificate in revocation lists.
    Raises ``ValueError`` for other bytes."""
    from cryptography import x509

    begin = b"-----BEGIN X509 CRL-----"
    parts = lists.split(begin)[1:]
    if not parts:
        raise ValueError("the file contains no X509 CRL")
    for part in parts:
        revocations = x509.load_pem_x509_crl(begin + part)
        issuer = sorted(str(name.value) for name in revocations.issuer)
        yield from ((f"{entry.serial_number:X}", *issuer) for entry in revocations)


def _read(what: str, file: str, load: Any) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise InvalidArgument(f"{what} for TLS ({file}) cannot be used: {error}") from error

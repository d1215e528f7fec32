"""TLS for front ends: one context for the life of the process, whose files can be read again."""

from __future__ import annotations

import ssl
from typing import Any

from penstock.core.errors import InvalidArgument


class Tls:
    """The realm's certificate, and whose client certificates it believes (SEM A5)."""

    def __init__(
        self, certificate: str, key: str, client_ca: str = "", *, client_required: bool = False
    ) -> None:
        """PEM files; ``client_ca`` has the authorities of client certificates. Raises
        ``InvalidArgument`` naming the file that does not do."""
        self._files = (certificate, key, client_ca)
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
        elif self._client_required:
            raise InvalidArgument(
                "listen.tls_client_required needs listen.tls_client_ca: the authorities whose "
                "client certificates are believed"
            )
        return context


def _read(what: str, file: str, load: Any) -> None:
    try:
        load()
    except (OSError, ValueError) as error:  # an ssl.SSLError is an OSError
        raise InvalidArgument(f"{what} for TLS ({file}) cannot be used: {error}") from error

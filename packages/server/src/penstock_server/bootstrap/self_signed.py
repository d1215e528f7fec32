"""Creates a self-signed certificate for realms without a configured one.

It protects passwords on the network. Clients trust it by its file (``?ca=…/tls/realm.pem``), which
must be copied from the data directory in a secure way.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock_core.columns.schema.moments import moment_of
from penstock_core.loggers import logger
from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.bootstrap.directories import write_file
from penstock_server.storage.disk import PRIVATE_DIRECTORY, PRIVATE_FILE

FOLDER: Final = "tls"
DAYS: Final = 825
"""Number of days that a created certificate is valid."""
RENEWED: Final = datetime.timedelta(days=30)
"""A start creates a new certificate if the current one expires within this time."""

_log = logger("penstock.realm")


def own_certificate(directory: Path, names: str, now_us: int) -> tuple[str, str]:
    """Return the paths of a certificate for the comma-separated ``names`` and of its key. They are
    created unless a suitable certificate exists. Raises ``InvalidArgument``."""
    hosts = [name.strip() for name in names.split(",") if name.strip()]
    if not hosts:
        raise InvalidArgument(f"listen.tls_self_signed is {names!r}; name at least one host")
    folder = directory / FOLDER
    certificate, key = folder / "realm.pem", folder / "realm.key"
    now = moment_of(now_us)
    alternatives = [_name(host) for host in hosts]
    if not _is_suitable(certificate, key, alternatives, now=now):
        folder.mkdir(mode=PRIVATE_DIRECTORY, exist_ok=True)
        _create(certificate, key, alternatives, now=now)
        _log.info("tls.certificate_made", file=str(certificate), names=hosts, days=DAYS)
    return str(certificate), str(key)


def _name(text: str) -> x509.GeneralName:
    """Return an IP address or host name in the form that certificates contain. Raises
    ``InvalidArgument`` for other texts."""
    try:
        return x509.IPAddress(ipaddress.ip_address(text))
    except ValueError:
        pass
    try:
        return x509.DNSName(text)
    except ValueError as error:
        raise InvalidArgument(
            f"listen.tls_self_signed has {text!r}, which is not a valid host name: {error}"
        ) from error


def _is_suitable(
    certificate: Path, key: Path, names: Sequence[x509.GeneralName], now: datetime.datetime
) -> bool:
    """Return whether the existing files match, have these names, and are valid for long enough."""
    try:
        existing = x509.load_pem_x509_certificate(certificate.read_bytes())
        private_key = serialization.load_pem_private_key(key.read_bytes(), None)
        extension = existing.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except (OSError, ValueError, x509.ExtensionNotFound):
        return False
    return (
        set(extension.value) == set(names)
        and now + RENEWED < existing.not_valid_after_utc
        and private_key.public_key() == existing.public_key()
    )


def _create(
    certificate: Path, key: Path, names: Sequence[x509.GeneralName], now: datetime.datetime
) -> None:
    private_key = ec.generate_private_key(ec.SECP256R1())
    public = private_key.public_key()
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Penstock realm")])
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=False,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    identifier = x509.SubjectKeyIdentifier.from_public_key(public)
    issuer = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(identifier)
    signed = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(public)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=1))  # clients' clocks may be behind
        .not_valid_after(now + datetime.timedelta(days=DAYS))
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        # Clients trust the certificate as an authority. A path length of 0 and the names limit
        # this to the certificate itself.
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(issuer, critical=False)
        .sign(private_key, hashes.SHA256())
    )
    secret = private_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_file(key, secret, PRIVATE_FILE)
    write_file(certificate, signed.public_bytes(serialization.Encoding.PEM), 0o644)

"""Files for the engine server of a node: its configuration, and certificates derived from the
secret of the cluster.

A machine with the secret belongs to the cluster. The password of the engine and the key of the
certificate authority are derived from it, so they are the same on all machines without any
communication. The authority signs the certificate that a machine shows to the others.
"""

from __future__ import annotations

import datetime
import ipaddress
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from penstock_cluster.bootstrap.engine_peers import USER, Peer, url_host
from penstock_server.bootstrap.directories import write_file
from penstock_server.storage.disk import PRIVATE_FILE

CONFIGURATION: Final = "nats-server.conf"
LOG: Final = "server.log"
STORE: Final = "store"
LOG_BYTES: Final = 16 << 20
"""Size in bytes after which the engine server begins a new log file."""
LOGS: Final = 4
"""Number of log files that the engine server keeps."""
_KEY_BYTES: Final = 32
_BEGINS: Final = datetime.datetime(2000, 1, 1, tzinfo=datetime.UTC)
_NEVER_ENDS: Final = datetime.datetime(
    9999, 12, 31, hour=23, minute=59, second=59, tzinfo=datetime.UTC
)
"""End of the validity of certificates. They need no earlier end, because they are only shown to
machines with the same secret, and a new secret makes them invalid."""
_AUTHORITY_NUMBER: Final = 1


class EngineTls(NamedTuple):
    """Paths of the TLS files of one machine."""

    authority: Path
    certificate: Path
    key: Path


def engine_password(secret: bytes) -> str:
    """Return the password of the engine in a cluster with this secret."""
    return _derive_key(secret, "password of the engine").hex()


def write_certificates(folder: Path, secret: bytes, peer: Peer) -> EngineTls:
    """Create new files that identify a machine to the others. Raises ``OSError``."""
    files = EngineTls(folder / "authority.pem", folder / "node.pem", folder / "node.key")
    signer = Ed25519PrivateKey.from_private_bytes(_derive_key(secret, "authority of the engine"))
    own_key = Ed25519PrivateKey.generate()
    write_file(files.authority, _pem(_authority_certificate(signer)), PRIVATE_FILE)
    write_file(files.certificate, _pem(_machine_certificate(signer, own_key, peer)), PRIVATE_FILE)
    key = own_key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    write_file(files.key, key, PRIVATE_FILE)
    return files


def configuration(
    folder: Path,
    cluster: str,
    own: Peer,
    peers: Sequence[Peer],
    host: str,
    password: str,
    tls: EngineTls | None,
) -> str:
    """Return the configuration of the server of a node, which listens at ``host`` and reaches
    the other servers at the addresses in ``peers``."""
    here = url_host(host)
    quoted = json.dumps
    routes = ", ".join(
        quoted(f"nats://{USER}:{password}@{url_host(peer.host)}:{peer.route_port}")
        for peer in peers
        if peer != own
    )
    scheme, secure = "http", ""
    if tls is not None:
        scheme = "https"
        names = f"cert_file: {quoted(str(tls.certificate))}, key_file: {quoted(str(tls.key))}"
        secure = (
            f"tls {{ {names}, ca_file: {quoted(str(tls.authority))}, verify: true, timeout: 5 }}"
        )
    sign_in = f"authorization {{ user: {USER}, password: {quoted(password)} }}"
    lines = [
        "# Written at each start of `penstock cluster node`.",
        f"server_name: {quoted(own.name)}",
        f"listen: {quoted(f'{here}:{own.port}')}",
        f"{scheme}: {quoted(f'{here}:{own.monitor_port}')}",
        "max_payload: 8MB",
        # With another interval the server would acknowledge data that is not on its disk yet.
        f"jetstream {{ store_dir: {quoted(str(folder / STORE))}, sync_interval: always }}",
        sign_in,
        secure,
        "cluster {",
        f"  name: {quoted(cluster)}",
        f"  listen: {quoted(f'{here}:{own.route_port}')}",
        "  no_advertise: true",
        f"  {sign_in}",
        f"  {secure}",
        f"  routes: [{routes}]",
        "}",
        f"log_file: {quoted(str(folder / LOG))}",
        f"logfile_size_limit: {LOG_BYTES}",
        f"logfile_max_num: {LOGS}",
    ]
    return "\n".join(line for line in lines if line.strip()) + "\n"


def _derive_key(secret: bytes, purpose: str) -> bytes:
    """Derive a key of 32 bytes from the secret of the cluster; each purpose has another key."""
    derivation = HKDF(hashes.SHA256(), _KEY_BYTES, None, info=f"penstock {purpose}".encode())
    return derivation.derive(secret)


def _authority_certificate(signer: Ed25519PrivateKey) -> x509.Certificate:
    """Return the certificate of the authority; its bytes are equal on all machines with one
    secret."""
    name = _common_name("Penstock cluster")
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=True, crl_sign=False,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    identifier = x509.SubjectKeyIdentifier.from_public_key(signer.public_key())
    return (
        x509.CertificateBuilder(name, name, signer.public_key(), serial_number=_AUTHORITY_NUMBER)
        .not_valid_before(_BEGINS)
        .not_valid_after(_NEVER_ENDS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(identifier, critical=False)
        # Ed25519 takes no separate hash algorithm.
        .sign(signer, None)
    )


def _machine_certificate(
    signer: Ed25519PrivateKey, own: Ed25519PrivateKey, peer: Peer
) -> x509.Certificate:
    """Return the certificate of a machine. It is valid for both ends of a connection, because each
    server of the engine also connects to the others."""
    usage = x509.KeyUsage(
        digital_signature=True, key_cert_sign=False, crl_sign=False,
        content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    usages = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
    public = signer.public_key()
    issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(public)
    identifier = x509.SubjectKeyIdentifier.from_public_key(own.public_key())
    return (
        x509.CertificateBuilder(
            _common_name("Penstock cluster"),
            _common_name(peer.name),
            own.public_key(),
            serial_number=x509.random_serial_number(),
        )
        .not_valid_before(_BEGINS)
        .not_valid_after(_NEVER_ENDS)
        .add_extension(x509.SubjectAlternativeName([_alternative_name(peer.host)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(usage, critical=True)
        .add_extension(x509.ExtendedKeyUsage(usages), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(issued_by, critical=False)
        .sign(signer, None)
    )


def _alternative_name(host: str) -> x509.GeneralName:
    """Return a host as the name that TLS compares with the address of a connection."""
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)])


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)

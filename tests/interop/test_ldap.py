"""Sign-ins against an LDAP directory of another project, in a separate process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)

import penstock
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import AuthenticationFailed, PenstockError, Unavailable
from tests.access.certificates import Authority
from tests.access.realms import QUICK
from tests.interop.programs import start_java

pytest.importorskip("ldap3")

SERVER = "com.unboundid.ldap.listener.InMemoryDirectoryServerTool"
ENTRIES = """\
dn: dc=example
objectClass: domain
dc: example

dn: ou=people,dc=example
objectClass: organizationalUnit
ou: people

dn: uid=ann,ou=people,dc=example
objectClass: person
objectClass: organizationalPerson
objectClass: inetOrgPerson
uid: ann
cn: Ann
sn: Ann
userPassword: secret
description: cn=ops,ou=groups,dc=example

dn: uid=o'neil(x)#,ou=people,dc=example
objectClass: person
objectClass: organizationalPerson
objectClass: inetOrgPerson
uid: o'neil(x)#
cn: Neil
sn: Neil
userPassword: clover

dn: ou=groups,dc=example
objectClass: organizationalUnit
ou: groups

dn: cn=ops,ou=groups,dc=example
objectClass: groupOfNames
cn: ops
member: uid=ann,ou=people,dc=example
member: uid=o'neil(x)#,ou=people,dc=example
"""
READER = "cn=reader"
GROUPS = {"group_base": "ou=groups,dc=example", "group_filter": "(member={dn})"}
WAYS: dict[str, dict[str, str]] = {
    "template": {"user_dn": "uid={user},ou=people,dc=example"},
    "search": {"base": "ou=people,dc=example", "filter": "(&(objectClass=person)(uid={user}))"},
}

pytestmark = [
    pytest.mark.usefixtures("java"),
    pytest.mark.alone,
    pytest.mark.slow,
    pytest.mark.process,
]


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"), "authority")


@pytest.fixture(scope="module", params=["ldaps", "StartTLS"])
def served(
    java: None,
    request: pytest.FixtureRequest,
    authority: Authority,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[dict[str, Any]]:
    """The settings of a directory that is being served."""
    folder = tmp_path_factory.mktemp("directory")
    store = key_store(authority, folder)
    (folder / "entries.ldif").write_text(ENTRIES)
    (folder / "reader").write_text("of the reader\n")
    is_ldaps = request.param == "ldaps"
    options = [
        "--useDefaultSchema",
        "--baseDN",
        "dc=example",
        "--ldifFile",
        str(folder / "entries.ldif"),
    ]
    options += ["--keyStorePath", str(store), "--keyStorePassword", "store"]
    options += ["--keyStoreType", "PKCS12", "--useSSL" if is_ldaps else "--useStartTLS"]
    options += ["--additionalBindDN", READER, "--additionalBindPassword", "of the reader"]
    with start_java("unboundid", SERVER, *options, until=r"port (\d+)") as port:
        yield {
            "url": f"{'ldaps' if is_ldaps else 'ldap'}://127.0.0.1:{port}",
            "start_tls": not is_ldaps,
            "ca": str(authority.file),
            "bind_password_file": str(folder / "reader"),
        }


def key_store(authority: Authority, folder: Path) -> Path:
    certificate, key = authority.certificate("directory")
    private = load_pem_private_key(key.read_bytes(), None)
    content = pkcs12.serialize_key_and_certificates(
        b"directory",
        private,  # type: ignore[arg-type]  # an elliptic curve key, which is one of the allowed
        x509.load_pem_x509_certificate(certificate.read_bytes()),
        None,
        BestAvailableEncryption(b"store"),
    )
    store = folder / "store.p12"
    store.write_bytes(content)
    return store


def outcomes(served: dict[str, Any], **options: Any) -> list[object]:
    """Return the outcome of each sign-in: the principal, or the type of the refusal."""
    ldap = {f"access__ldap__{name}": value for name, value in {**served, **options}.items()}
    results: list[object] = []
    with penstock.Realm(access__mode="mandatory", **QUICK, **ldap) as realm:
        for user, password in (
            ("ann", "secret"),
            ("ANN", "secret"),
            ("o'neil(x)#", "clover"),
            ("ann", "wrong"),
            ("nobody", "secret"),
            ("*", "secret"),
            ("ann)(uid=*", "secret"),
            ("ann", ""),
        ):
            try:
                results.append(
                    realm.loop.call(realm.access.password(user, password, "127.0.0.1", secure=True))
                )
            except PenstockError as error:
                results.append(type(error))
    return results


@pytest.mark.spec("A7")
@pytest.mark.parametrize("way", WAYS)
def test_a_directory_of_another_project_signs_its_users_in(
    served: dict[str, Any], way: str
) -> None:
    options = dict(WAYS[way]) | GROUPS
    if way == "search":
        options["bind_dn"] = READER
    else:
        options["bind_password_file"] = ""

    first, other_spelling, with_signs, *refused = outcomes(served, **options)

    for principal, user in ((first, "ann"), (other_spelling, "ann"), (with_signs, "o'neil(x)#")):
        assert isinstance(principal, Principal), principal
        assert (principal.user, principal.groups) == (f"ldap:{user}", frozenset(("ops",)))
    assert set(refused) == {AuthenticationFailed}


def test_a_directory_with_a_foreign_certificate_gets_no_password(
    served: dict[str, Any], tmp_path: Path
) -> None:
    foreign = Authority(tmp_path, "foreign")
    options = {"bind_password_file": "", "ca": str(foreign.file), **WAYS["template"]}

    results = outcomes(served | options)

    assert set(results) == {Unavailable, AuthenticationFailed}
    assert results[0] is Unavailable

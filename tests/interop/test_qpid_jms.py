"""Programs of the JMS 2.0 interface over an unmodified Apache Qpid JMS."""

from __future__ import annotations

import json
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ec import (
    SECP256R1,
    EllipticCurvePrivateKey,
    generate_private_key,
)
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    load_pem_private_key,
    pkcs12,
)
from cryptography.x509 import load_pem_x509_certificate
from jwt.algorithms import ECAlgorithm

import penstock
from tests.access.certificates import Authority
from tests.interop.programs import WITHOUT_PROTON, InteropRealm, Tell, Whole, patience_in, run_java

TESTS = 43
REQUESTS = 3
"""Requests of each requestor in ``RequestTest``."""
PATIENCE_S = 60.0
CLASSES = ("MessageTest", "QueueTest", "TopicTest")


@pytest.mark.usefixtures("java")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.process
def test_qpid_jms(jms: str, run_suite: Whole, tell: Tell) -> None:
    classes = [f"penstock.interop.{class_}" for class_ in CLASSES]

    properties = {"realm.amqp": jms, "realm.patient": str(patience_in(jms))}

    outcome = run_suite(lambda names: run_java("qpid", names, properties), classes)

    tell("Qpid JMS", outcome)
    assert str(outcome) == f"{TESTS} of {TESTS} pass"
    assert outcome.ignored == 0


@pytest.mark.usefixtures("java")
@pytest.mark.alone
@pytest.mark.slow
@pytest.mark.process
@pytest.mark.spec("R2")
def test_jms_requestors_and_repliers_meet_those_of_penstock(
    realm: InteropRealm, jms: str, tell: Tell
) -> None:
    with penstock.connect(realm.url) as session, ThreadPoolExecutor(3) as pool:
        requests = session.queues.create("jms/asked")
        published = session.channels.create("jms/published", engine="jms")
        work = session.queues.create("jms/work")
        serving = [
            pool.submit(_reply_to, requests.reader(), REQUESTS),
            pool.submit(_reply_to, published.subscribe(start="earliest").__enter__(), REQUESTS),
        ]
        asking = pool.submit(work.request, b"of Penstock", 200.0)

        properties = {"realm.amqp": jms, "realm.patient": str(patience_in(jms))}
        outcome = run_java("qpid", ["penstock.interop.RequestTest"], properties)

        tell("Qpid JMS, request and reply", outcome)
        assert str(outcome) == "3 of 3 pass"
        assert asking.result(PATIENCE_S).data == b"re: of Penstock"
        assert [reply.result(PATIENCE_S) for reply in serving] == [REQUESTS, REQUESTS]


def _reply_to(requests: Iterable[penstock.ReceivedEvent], count: int) -> int:
    """Reply to so many requests; gives their number."""
    for number, request in enumerate(requests, 1):
        request.reply(b"re: " + request.data)
        if number == count:
            return number
    return 0


@pytest.mark.usefixtures("java")
@pytest.mark.slow
@pytest.mark.process
def test_qpid_jms_signs_in(tmp_path: Path, failover: str, tell: Tell) -> None:
    pytest.importorskip("proton", reason=WITHOUT_PROTON)
    authority = Authority(tmp_path, "authority")
    certificate, key = authority.certificate("realm")
    own_certificate, own_key = authority.certificate("ann")
    trust, store = tmp_path / "trust.p12", tmp_path / "ann.p12"
    trusted = load_pem_x509_certificate(authority.file.read_bytes())
    secret = BestAvailableEncryption(b"secret")
    entry = pkcs12.PKCS12Certificate(trusted, b"authority")
    trust.write_bytes(pkcs12.serialize_java_truststore([entry], secret))
    private = load_pem_private_key(own_key.read_bytes(), None)
    assert isinstance(private, EllipticCurvePrivateKey)
    chain = load_pem_x509_certificate(own_certificate.read_bytes())
    store.write_bytes(
        pkcs12.serialize_key_and_certificates(
            b"ann", private, chain, cas=[trusted], encryption_algorithm=secret
        )
    )

    signer = generate_private_key(SECP256R1())
    public = json.loads(ECAlgorithm.to_jwk(signer.public_key()))
    keys = tmp_path / "keys.json"
    keys.write_text(json.dumps({"keys": [{**public, "kid": "k", "alg": "ES256"}]}))
    claims = {"iss": "sso", "aud": "penstock", "sub": "ann", "exp": 4_000_000_000}
    token = jwt.encode(claims, signer, algorithm="ES256", headers={"kid": "k"})

    with (
        penstock.Realm(
            access__mode="mandatory",
            access__password_rounds=4_096,
            access__password_length_min=1,
            access__failure_delay_s=0.0,
            listen__tls_certificate=str(certificate),
            listen__tls_key=str(key),
            listen__tls_client_ca=str(authority.file),
            access__token_keys=str(keys),
            access__token_issuer="sso",
            access__token_audience="penstock",
        ) as realm,
        realm.connect() as root,
    ):
        root.access.create_user("ann", "secret")
        root.access.grant("ann@*", "full")
        root.access.grant("certificate:ann@*", "full")
        root.access.grant("token:ann@*", "full")
        properties = {"realm.trust": str(trust), "realm.key": str(store)}
        properties |= {"realm.token": token, "realm.failover": failover}
        properties["realm.amqp"] = realm.listen_amqp()
        outcome = run_java("qpid", ["penstock.interop.SignInTest"], properties)

    tell("Qpid JMS over TLS", outcome)
    assert str(outcome) == "6 of 6 pass"

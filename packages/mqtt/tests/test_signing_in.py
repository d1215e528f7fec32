"""Sign-in and repeated sign-in over MQTT: SCRAM, tokens and certificates (SEM M11)."""

from __future__ import annotations

import json
import ssl
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm
from msgspec.structs import replace

import penstock
from packages.mqtt.tests.clients import Hung, PacketClient, connected
from penstock_core.wire.scram import MECHANISM, ScramClient
from penstock_mqtt.wire.packets import (
    AuthPacket,
    ConnackPacket,
    ConnectPacket,
    DisconnectPacket,
    PingreqPacket,
    PingrespPacket,
    PubackPacket,
    PublishPacket,
)
from penstock_mqtt.wire.properties import PacketProperties
from penstock_mqtt.wire.reasons import Reason
from tests.access.realms import QUICK, authority_in, realm_with_tls

pytestmark = pytest.mark.spec("M11")

KEY = ec.generate_private_key(ec.SECP256R1())
TOKENS = "XOAUTH2"
FUTURE_S = 4_000_000_000


def token(**claims: Any) -> bytes:
    claim_set = {"iss": "sso", "aud": "penstock", "sub": "ann", "exp": FUTURE_S, **claims}
    return jwt.encode(claim_set, KEY, algorithm="ES256", headers={"kid": "k"}).encode()


def bearer(shown: bytes, user: bytes = b"") -> bytes:
    return b"user=" + user + b"\x01auth=Bearer " + shown + b"\x01\x01"


@pytest.fixture(scope="module")
def realm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[penstock.Realm]:
    """``ann`` and ``bob`` have passwords, and there is an issuer of tokens."""
    key = {**json.loads(ECAlgorithm.to_jwk(KEY.public_key())), "kid": "k", "alg": "ES256"}
    keys = tmp_path_factory.mktemp("keys") / "keys.json"
    keys.write_text(json.dumps({"keys": [key]}))
    rules = {"token_keys": str(keys), "token_issuer": "sso", "token_audience": "penstock"}
    settings: dict[str, Any] = {f"access__{name}": value for name, value in rules.items()}
    with penstock.Realm(
        access__mode="mandatory", access__lockout_failures=1_000, **QUICK, **settings
    ) as running:
        running.listen_mqtt()
        with running.connect() as root:
            for user in ("ann", "bob"):
                root.access.create_user(user, f"{user}'s secret")
            for subject in ("ann@*", "bob@*", "token:ann@*"):
                root.access.grant(subject, "access")
                root.access.grant(subject, "publish", "subscribe", channel="mqtt")
        yield running


def step(
    data: bytes | None,
    reason: Reason = Reason.CONTINUE_AUTHENTICATION,
    method: str | None = MECHANISM,
) -> AuthPacket:
    properties = PacketProperties(authentication_method=method, authentication_data=data)
    return AuthPacket(reason, properties)


def begun(client: PacketClient, data: bytes | None, method: str = MECHANISM, **fields: Any) -> Any:
    properties = PacketProperties(authentication_method=method, authentication_data=data)
    client.send(ConnectPacket("device", properties=properties, **fields))
    return client.receive()


def scram_connected(url: str, user: str = "ann", password: str = "ann's secret") -> PacketClient:
    """A client that has shown its password, and seen that the realm knows it."""
    client, scram = PacketClient(url), ScramClient(user, password, "nonce")
    challenge = begun(client, scram.first())
    assert challenge == step(challenge.properties.authentication_data)
    client.send(step(scram.final(challenge.properties.authentication_data)))
    answer = client.receive()
    assert (answer.reason, answer.properties.authentication_method) == (0, MECHANISM)
    scram.check(answer.properties.authentication_data)
    return client


def again(client: PacketClient, user: str = "ann", password: str = "ann's secret") -> Any:
    """What ends a sign-in that a client begins anew."""
    scram = ScramClient(user, password, "nonce2")
    client.send(step(scram.first(), Reason.RE_AUTHENTICATE))
    challenge = client.receive()
    assert challenge == step(challenge.properties.authentication_data)
    client.send(step(scram.final(challenge.properties.authentication_data)))
    last = client.receive()
    if isinstance(last, AuthPacket):
        scram.check(last.properties.authentication_data or b"")
    return last


def is_closed(client: PacketClient) -> bool:
    with pytest.raises(Hung):
        client.receive()
    return True


def publisher_of(realm: penstock.Realm, topic: str) -> str:
    with realm.connect() as session:
        (event,) = session.channels.get("mqtt").browse(selector=f"topic = '{topic}'")
    return str(event.headers["publisher"])


# --- SCRAM -------------------------------------------------------------------------------


def test_a_password_is_shown_without_being_sent(realm: penstock.Realm) -> None:
    with scram_connected(realm.listen_mqtt()) as client:
        assert client.publish("by/scram") == PubackPacket(1)

    assert publisher_of(realm, "by/scram") == "ann"


def test_a_client_that_says_nothing_at_first_is_asked(realm: penstock.Realm) -> None:
    scram = ScramClient("ann", "ann's secret", "nonce")
    with PacketClient(realm.listen_mqtt()) as client:
        assert begun(client, None) == step(None)
        client.send(step(scram.first()))
        client.send(step(scram.final(client.receive().properties.authentication_data)))
        assert client.receive().reason == 0


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("nobody", "ann's secret"), ("bob", "ann's secret")]
)
def test_a_wrong_proof_is_refused(realm: penstock.Realm, user: str, password: str) -> None:
    scram = ScramClient(user, password, "nonce")
    with PacketClient(realm.listen_mqtt()) as client:
        challenge = begun(client, scram.first())
        client.send(step(scram.final(challenge.properties.authentication_data)))
        refused = client.receive()

        assert refused.reason == Reason.BAD_USER_OR_PASSWORD
        assert refused.properties.authentication_method is None
        assert is_closed(client)


@pytest.mark.parametrize("method", ["PLAIN", "SCRAM-SHA-1", ""])
def test_a_method_that_there_is_not_is_refused(realm: penstock.Realm, method: str) -> None:
    with PacketClient(realm.listen_mqtt()) as client:
        refused = begun(client, b"x", method)

        assert refused.reason == Reason.BAD_AUTHENTICATION_METHOD
        assert MECHANISM in refused.properties.reason
        assert TOKENS in refused.properties.reason
        assert is_closed(client)


@pytest.mark.spec("M1")
def test_a_challenge_is_no_larger_than_its_client_takes(realm: penstock.Realm) -> None:
    properties = PacketProperties(
        authentication_method=MECHANISM,
        authentication_data=ScramClient("ann", "ann's secret", "nonce").first(),
        maximum_packet_bytes=30,
    )
    with PacketClient(realm.listen_mqtt()) as client:
        client.send(ConnectPacket("device", properties=properties))
        refused = client.receive()

        assert isinstance(refused, ConnackPacket)
        assert refused.reason == Reason.PACKET_TOO_LARGE
        assert is_closed(client)


@pytest.mark.parametrize("data", [b"\xff", b"n,,n=ann", b"p=tls-unique,,n=ann,r=x"])
def test_what_is_no_first_message_is_refused(realm: penstock.Realm, data: bytes) -> None:
    with PacketClient(realm.listen_mqtt()) as client:
        assert begun(client, data).reason == Reason.BAD_USER_OR_PASSWORD
        assert is_closed(client)


def test_who_acts_as_somebody_else_is_refused(realm: penstock.Realm) -> None:
    scram = ScramClient("ann", "ann's secret", "nonce")
    with PacketClient(realm.listen_mqtt()) as client:
        challenge = begun(client, scram.first(), user="bob")
        client.send(step(scram.final(challenge.properties.authentication_data)))
        assert client.receive().reason == Reason.BAD_USER_OR_PASSWORD


@pytest.mark.parametrize(
    "packet",
    [
        PublishPacket("a"),
        PingreqPacket(),
        ConnectPacket("again"),
        AuthPacket(),
        step(b"x", method=TOKENS),
        step(b"x", Reason.RE_AUTHENTICATE),
        step(b"x", Reason.SUCCESS),
    ],
)
def test_until_it_is_known_who_a_client_is_it_sends_nothing_else(
    realm: penstock.Realm, packet: Any
) -> None:
    scram = ScramClient("ann", "ann's secret", "nonce")
    with PacketClient(realm.listen_mqtt()) as client:
        begun(client, scram.first())
        client.send(packet)
        refused = client.receive()

        assert isinstance(refused, ConnackPacket)
        assert refused.reason == Reason.PROTOCOL_ERROR
        assert is_closed(client)


def test_a_client_may_give_up(realm: penstock.Realm) -> None:
    scram = ScramClient("ann", "ann's secret", "nonce")
    with PacketClient(realm.listen_mqtt()) as client:
        begun(client, scram.first())
        client.send(DisconnectPacket())
        assert is_closed(client)


def test_what_follows_a_refused_connect_is_not_heard(realm: penstock.Realm) -> None:
    with PacketClient(realm.listen_mqtt()) as client:
        client.send(
            ConnectPacket("device", user="ann", password=b"wrong"),
            PublishPacket("after/refusal", b"", 1, packet_id=1),
        )
        assert client.receive().reason == Reason.BAD_USER_OR_PASSWORD
        assert is_closed(client)
    with realm.connect() as session:
        channel = session.channels.get("mqtt")
        assert list(channel.browse(selector="topic = 'after/refusal'")) == []


def test_where_nobody_is_asked_there_is_no_method() -> None:
    with penstock.Realm() as open_to_all, PacketClient(open_to_all.listen_mqtt()) as client:
        refused = begun(client, b"n,,n=ann,r=x")
        assert refused.reason == Reason.BAD_AUTHENTICATION_METHOD


# --- again -------------------------------------------------------------------------------


def test_a_client_shows_again_who_it_is_and_goes_on_meanwhile(realm: penstock.Realm) -> None:
    with scram_connected(realm.listen_mqtt()) as client:
        client.subscribe("while/#")
        scram = ScramClient("ann", "ann's secret", "nonce2")
        client.send(step(scram.first(), Reason.RE_AUTHENTICATE), PingreqPacket())
        first, second = client.receive(), client.receive()
        challenge: Any = first if isinstance(first, AuthPacket) else second
        assert {type(first), type(second)} == {AuthPacket, PingrespPacket}
        client.send(PublishPacket("while/asked", b"", 1, packet_id=9))
        got = {type(client.receive()) for _ in range(2)}
        assert got == {PublishPacket, PubackPacket}
        client.send(step(scram.final(challenge.properties.authentication_data)))
        last = client.receive()

        assert (last.reason, last.properties.authentication_method) == (0, MECHANISM)
        scram.check(last.properties.authentication_data)
        assert again(client).reason == Reason.SUCCESS, "as often as it wants"


@pytest.mark.parametrize(
    ("user", "password"), [("ann", "wrong"), ("bob", "bob's secret")], ids=["wrong", "other"]
)
def test_who_cannot_show_it_again_loses_the_connection(
    realm: penstock.Realm, user: str, password: str
) -> None:
    with scram_connected(realm.listen_mqtt()) as client:
        last = again(client, user, password)

        assert isinstance(last, DisconnectPacket)
        assert last.reason == Reason.NOT_AUTHORIZED
        assert is_closed(client)


@pytest.mark.parametrize(
    "packets",
    [
        [step(b"x", Reason.RE_AUTHENTICATE, TOKENS)],
        [step(b"x", Reason.RE_AUTHENTICATE, None)],
        [step(b"x")],
        [AuthPacket()],
        [step(b"n,,n=ann,r=x", Reason.RE_AUTHENTICATE)] * 2,
    ],
    ids=["another method", "no method", "out of turn", "success", "two at once"],
)
def test_an_auth_out_of_turn_ends_the_connection(
    realm: penstock.Realm, packets: list[AuthPacket]
) -> None:
    with scram_connected(realm.listen_mqtt()) as client:
        client.send(*packets)
        last = client.receive()
        while isinstance(last, AuthPacket):
            last = client.receive()
        assert last.reason == Reason.PROTOCOL_ERROR
        assert is_closed(client)


def test_without_a_method_there_is_no_auth(realm: penstock.Realm) -> None:
    with connected(realm.listen_mqtt(), user="ann", password=b"ann's secret") as client:
        client.send(step(b"x", Reason.RE_AUTHENTICATE))
        assert client.receive().reason == Reason.PROTOCOL_ERROR
        assert is_closed(client)


def test_a_client_without_a_method_is_sent_none(realm: penstock.Realm) -> None:
    with PacketClient(realm.listen_mqtt()) as client:
        connack = client.connect(user="ann", password=b"ann's secret")
        assert connack.reason == 0
        assert connack.properties.authentication_method is None


def test_a_session_that_lasts_goes_on_as_who_has_shown_it_again(realm: penstock.Realm) -> None:
    lasting = PacketProperties(
        authentication_method=TOKENS,
        authentication_data=bearer(token(groups=["old"])),
        session_expiry_s=60,
    )
    with PacketClient(realm.listen_mqtt()) as client:
        assert client.connect("keeper", properties=lasting).reason == 0
        client.send(step(bearer(token(groups=["new"])), Reason.RE_AUTHENTICATE, TOKENS))
        assert client.receive().reason == Reason.SUCCESS

    async def principal() -> Any:
        hub: Any = realm.listener.services["mqtt"]
        (session,) = hub.sessions._stored_sessions.values()
        return session.principal

    assert realm.loop.call(principal()).groups == {"new"}


# --- tokens ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fields",
    [{"user": "token", "password": token()}, {"password": token()}],
    ids=["user token", "no user"],
)
def test_a_password_may_be_a_token(realm: penstock.Realm, fields: dict[str, Any]) -> None:
    topic = f"by/{len(fields)}"
    with connected(realm.listen_mqtt(), **fields) as client:
        assert client.publish(topic).reason == Reason.SUCCESS

    assert publisher_of(realm, topic) == "token:ann"


@pytest.mark.parametrize("version", [4, 5])
def test_a_token_that_is_none_is_refused(realm: penstock.Realm, version: int) -> None:
    for wrong in (b"", b"no token", token(exp=1_000), token(aud="other")):
        with PacketClient(realm.listen_mqtt(), version) as client:
            refused = client.connect("d", user="token", password=wrong).reason
            assert refused == (Reason.BAD_USER_OR_PASSWORD if version == 5 else 4)


def test_a_user_may_be_called_token() -> None:
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        with realm.connect() as root:
            root.access.create_user("token", "secret")
            root.access.grant("token@*", "access")
        with connected(realm.listen_mqtt(), user="token", password=b"secret"):
            pass


def test_a_token_is_shown_by_auth_and_a_newer_one_later(realm: penstock.Realm) -> None:
    with PacketClient(realm.listen_mqtt()) as client:
        answer = begun(client, bearer(token(exp=FUTURE_S), b"ann"), TOKENS)
        assert (answer.reason, answer.properties.authentication_method) == (0, TOKENS)
        newer = bearer(token(exp=FUTURE_S + 600))
        client.send(step(newer, Reason.RE_AUTHENTICATE, TOKENS))
        properties = PacketProperties(authentication_method=TOKENS)
        assert client.receive() == AuthPacket(Reason.SUCCESS, properties)
        until_s = realm.loop.call(_expired(realm, "device")) // 1_000_000
        last = client.receive()

    assert FUTURE_S + 600 <= until_s < FUTURE_S + 1_200
    assert last.reason == Reason.NOT_AUTHORIZED
    assert "expired" in last.properties.reason


async def _expired(realm: penstock.Realm, client_id: str) -> int:
    """Have the token of a client be over; gives until when it was good, in microseconds."""
    hub: Any = realm.listener.services["mqtt"]
    (connection,) = [
        connection for connection in hub.connections() if connection.client_id == client_id
    ]
    until_us: int = connection.principal.until_us
    connection.principal = replace(connection.principal, until_us=1)
    connection.check(connection.heard_s)
    return until_us


def test_somebody_elses_token_is_refused(realm: penstock.Realm) -> None:
    with PacketClient(realm.listen_mqtt()) as client:
        refused = begun(client, bearer(token(), b"bob"), TOKENS)
        assert refused.reason == Reason.BAD_USER_OR_PASSWORD


# --- certificates ------------------------------------------------------------------------


@pytest.mark.spec("A5")
def test_a_certificate_says_who_it_is(tmp_path: Path) -> None:
    authority = authority_in(tmp_path)
    with realm_with_tls(tmp_path, authority) as realm:
        url = realm.listen_mqtt("localhost")
        with realm.connect() as root:
            root.access.grant("certificate:alice@*", "publish", channel="mqtt")
        context = ssl.create_default_context(cafile=str(authority.file))
        context.check_hostname = False
        with PacketClient(url, tls=context) as nobody:
            assert nobody.connect().reason == Reason.BAD_USER_OR_PASSWORD
        with PacketClient(url, tls=context) as bob:
            assert bob.connect(user="bob", password=b"secret").reason == 0
        context.load_cert_chain(tmp_path / "alice.pem", tmp_path / "alice.key")
        with PacketClient(url, tls=context) as alice:
            assert alice.connect().reason == 0
            assert alice.publish("by/certificate").reason == Reason.SUCCESS
        assert publisher_of(realm, "by/certificate") == "certificate:alice"

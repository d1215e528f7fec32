"""Users of an LDAP directory: their sign-ins, their names in the realm, and the requests that the
realm never sends to the directory."""

from __future__ import annotations

import asyncio
import base64
import json
import ssl
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import penstock
from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import (
    AuthenticationFailed,
    InvalidArgument,
    PenstockError,
    SignInLocked,
    Unavailable,
)
from penstock_server.runtime.access.ldap_conversation import GROUPS_MAX, LdapRules, escaped
from penstock_server.runtime.access.ldap_sign_in import (
    CONCURRENT_MAX,
    PASSWORD_BYTES_MAX,
    directory_name,
)
from tests.access.certificates import Authority
from tests.access.ldap_directory import (
    GROUPS,
    PEOPLE,
    SERVICE,
    SERVICE_PASSWORD,
    Directory,
    directory,
)
from tests.access.realms import QUICK

pytest.importorskip("ldap3")

TEMPLATE = {"user_dn": f"uid={{user}},{PEOPLE}"}
SEARCH = {"base": PEOPLE}


@pytest.fixture
def people() -> Iterator[Directory]:
    with directory() as made:
        yield made


@contextmanager
def realm_of(people: Directory, **options: Any) -> Iterator[penstock.Realm]:
    """A realm whose users are those of a directory; ``carl`` has a password of the realm."""
    ways = {} if {"user_dn", "base"} & options.keys() else TEMPLATE
    ldap = {
        f"access__ldap__{name}": value
        for name, value in {"url": people.url, "remember_s": 0.0, **ways, **options}.items()
    }
    with penstock.Realm(access__mode="mandatory", http__enabled=True, **QUICK, **ldap) as realm:
        with realm.connect() as session:
            session.access.create_user("carl", "of the realm")
        yield realm


def signed_in(realm: penstock.Realm, user: str, password: str) -> Principal:
    return realm.loop.call(realm.access.password(user, password, "127.0.0.1", secure=False))


def refusal(realm: penstock.Realm, user: str, password: str) -> PenstockError:
    with pytest.raises(PenstockError) as refused:
        signed_in(realm, user, password)
    return refused.value


def service(folder: Path) -> dict[str, str]:
    file = folder / "reader.password"
    file.write_text(f"{SERVICE_PASSWORD}\n")
    return {**SEARCH, "bind_dn": SERVICE, "bind_password_file": str(file)}


# --- who signs in ------------------------------------------------------------------------


@pytest.mark.spec("A7")
@pytest.mark.parametrize("way", ["template", "search", "search with an account"])
def test_the_directory_decides_about_a_password_and_names_the_groups(
    people: Directory, tmp_path: Path, way: str
) -> None:
    options = {"template": TEMPLATE, "search": SEARCH}.get(way) or service(tmp_path)
    with realm_of(people, **options) as realm:
        principal = signed_in(realm, "ann", "secret")
        wrong = refusal(realm, "ann", "Secret")
        unknown = refusal(realm, "eve", "secret")

    assert principal.user == "ldap:ann"
    assert principal.groups == {"ops", "dev"}
    assert principal.proof == "ldap"
    assert str(wrong) == str(unknown) == "the user is not known here, or the password is wrong"


def test_groups_that_list_their_members_are_searched(people: Directory, tmp_path: Path) -> None:
    groups = {"group_base": GROUPS, "group_filter": "(member={dn})"}
    for way in (TEMPLATE, service(tmp_path)):
        with realm_of(people, **way, **groups) as realm:
            assert signed_in(realm, "ann", "secret").groups == {"ops", "dev"}
            assert signed_in(realm, "bob", "hidden").groups == set()


def test_only_groups_below_their_base_and_with_valid_names_count(people: Directory) -> None:
    people.groups_of["ann"] = [
        "ops",
        "two words",
        "cn=dev,ou=elsewhere,dc=example",
        "cn=ops+ou=x,ou=groups,dc=example",
        "CN=qa,OU=Groups,DC=Example",
        GROUPS,
        "=,",
    ]
    with realm_of(people, group_base=GROUPS) as realm:
        assert signed_in(realm, "ann", "secret").groups == {"ops", "qa"}

    people.groups_of["ann"] = [f"g{number}" for number in range(GROUPS_MAX + 1)]
    with realm_of(people) as realm:
        assert signed_in(realm, "ann", "secret").groups == set()


@pytest.mark.spec("A7")
def test_rights_of_a_group_reach_the_users_of_the_directory_over_each_protocol(
    people: Directory,
) -> None:
    with realm_of(people) as realm:
        with realm.connect() as trusted:
            trusted.access.grant("group:ops", "access", "channels")
        url = realm.listen().replace("://", "://ann:secret@")
        with penstock.connect(f"{url}?sign_in=plain") as session:
            me = session.access.me()
            session.channels.create("orders")
        over_http = told_over_http(realm, "ann:secret")
        with pytest.raises(AuthenticationFailed, match=r"\?sign_in=plain in a URL"):
            penstock.connect(url)

    assert (me.user, me.groups) == ("ldap:ann", ("dev", "ops"))
    assert over_http["user"] == "ldap:ann"


def told_over_http(realm: penstock.Realm, credentials: str) -> Any:
    code = base64.b64encode(credentials.encode()).decode()
    request = urllib.request.Request(
        f"{realm.listen_http()}/api/v1/me", headers={"Authorization": f"Basic {code}"}
    )
    with urllib.request.urlopen(request, timeout=10) as answer:
        return json.loads(answer.read())


@pytest.mark.spec("A7")
def test_a_user_of_the_realm_is_never_one_of_the_directory(people: Directory) -> None:
    people.people["carl"] = "of the directory"
    for users in ("apart", "same"):
        with realm_of(people, users=users) as realm:
            carl = signed_in(realm, "carl", "of the realm")
            refused = refusal(realm, "carl", "of the directory")
            other_spelling = refusal(realm, "CARL", "of the directory")

        assert (carl.user, carl.proof) == ("carl", "password")
        assert isinstance(refused, AuthenticationFailed)
        assert isinstance(other_spelling, AuthenticationFailed)
    assert people.binds == []


def test_the_users_of_a_directory_may_be_those_of_the_realm(people: Directory) -> None:
    with realm_of(people, users="same") as realm:
        with realm.connect() as session:
            session.access.create_user("bob")
            session.access.grant("bob@*", "access")

        assert signed_in(realm, "bob", "hidden").user == "bob"


def test_a_name_has_one_spelling_and_one_count_of_failures(people: Directory) -> None:
    assert directory_name("Ann") == directory_name("\uff21\uff4e\uff4e") == "ann"
    with realm_of(people) as realm:
        assert signed_in(realm, "ANN", "secret").user == "ldap:ann"

        for _ in range(5):
            refusal(realm, "ann", "wrong")
            refusal(realm, "Ann", "wrong")
        count = len(people.binds)

        assert isinstance(refusal(realm, "aNN", "secret"), SignInLocked)
        assert len(people.binds) == count


# --- what is never sent ------------------------------------------------------------------


@pytest.mark.spec("A7")
@pytest.mark.parametrize("password", ["", "\0", "secret\0", "x" * (PASSWORD_BYTES_MAX + 1)])
def test_an_empty_password_is_not_sent_because_each_directory_accepts_it(
    people: Directory, password: str
) -> None:
    with realm_of(people) as realm:
        refused = refusal(realm, "ann", password)

    assert isinstance(refused, AuthenticationFailed)
    assert people.binds == []


@pytest.mark.parametrize(
    "user", ["*", "a*", "ann)(uid=*", "ann,ou=people", "ann\\2c", "x)(|(uid=ann)", "{dn}", "#ann"]
)
def test_no_name_changes_the_filter_or_the_place_in_the_tree(people: Directory, user: str) -> None:
    for way in (TEMPLATE, SEARCH):
        with realm_of(people, **way) as realm:
            assert isinstance(refusal(realm, user, "secret"), AuthenticationFailed)

    names = [name for name, _ in people.binds if name]
    assert all(name.endswith(f",{PEOPLE}") and name.count(",") == 2 for name in names)
    assert {value for _, _, value in people.searches} <= {user}


def test_a_user_with_signs_of_filters_in_the_name_signs_in(people: Directory) -> None:
    people.people["o'neil#(1)"] = "clover"
    for way in (TEMPLATE, SEARCH):
        with realm_of(people, **way) as realm:
            assert signed_in(realm, "o'neil#(1)", "clover").user == "ldap:o'neil#(1)"
    assert escaped("é*") == "\\c3\\a9\\2a"


def test_an_entry_that_is_not_the_only_one_signs_nobody_in(people: Directory) -> None:
    people.people |= {"Ann": "other"}
    with realm_of(people, **SEARCH) as realm:
        assert isinstance(refusal(realm, "ann", "secret"), Unavailable)


# --- a directory that misbehaves ---------------------------------------------------------


@pytest.mark.spec("A7")
@pytest.mark.parametrize(
    "misbehaviour", ["silent", "garbage", "drip", "refers", "busy", "hangs up", "away"]
)
def test_a_directory_that_gives_no_answer_signs_nobody_in_and_counts_for_nobody(
    people: Directory, misbehaviour: str
) -> None:
    if misbehaviour == "away":
        people.close()
    people.misbehaviour = misbehaviour
    for way in (TEMPLATE, SEARCH):
        with realm_of(people, timeout_s=0.3, **way) as realm:
            refusals = [refusal(realm, "ann", "secret") for _ in range(2)]
            carl = signed_in(realm, "carl", "of the realm")
            assert realm.access.ldap is not None
            turns = realm.access.ldap.turns
            assert turns.free == CONCURRENT_MAX

        assert carl.user == "carl"
        for refused in refusals:
            assert isinstance(refused, Unavailable)
            assert "cannot be asked now" in str(refused)


def test_a_search_account_with_a_wrong_password_is_not_blamed_on_the_user(
    people: Directory, tmp_path: Path
) -> None:
    options = service(tmp_path)
    Path(options["bind_password_file"]).write_text("old")
    with realm_of(people, **options) as realm:
        assert isinstance(refusal(realm, "ann", "secret"), Unavailable)
        Path(options["bind_password_file"]).write_text(SERVICE_PASSWORD)

        assert signed_in(realm, "ann", "secret").user == "ldap:ann"


def test_sign_ins_that_wait_for_a_silent_directory_are_bounded(people: Directory) -> None:
    people.misbehaviour = "silent"
    with realm_of(people, timeout_s=0.4) as realm:
        kinds: list[type[PenstockError]] = []

        async def attempt(user: str) -> None:
            try:
                await realm.access.password(user, "secret", "10.0.0.9", secure=True)
            except PenstockError as error:
                kinds.append(type(error))

        async def many() -> None:
            async with asyncio.TaskGroup() as tasks:
                for number in range(80):
                    tasks.create_task(attempt(f"u{number}"))

        realm.loop.call(many())

    assert set(kinds) == {Unavailable, SignInLocked}
    assert kinds.count(SignInLocked) == 16


# --- time --------------------------------------------------------------------------------


def test_a_right_password_is_remembered_for_a_while_and_until_a_reload(people: Directory) -> None:
    with realm_of(people, remember_s=60) as realm:
        for _ in range(3):
            signed_in(realm, "ann", "secret")
        once = len(people.binds)
        refusal(realm, "ann", "wrong")
        refusal(realm, "ann", "wrong")
        realm.loop.call(reloaded(realm))
        signed_in(realm, "ann", "secret")

    assert once == 1
    assert len(people.binds) == 4


async def reloaded(realm: penstock.Realm) -> None:
    realm.access.reload()


def test_a_session_of_a_directorys_user_ends(people: Directory) -> None:
    with realm_of(people, session_s=60) as realm:
        with realm.connect() as trusted:
            trusted.access.grant("ldap:ann@*", "access")
        principal = signed_in(realm, "ann", "secret")
        realm.access.check_still(principal, principal.until_us)

        with pytest.raises(AuthenticationFailed, match="sign in again"):
            realm.access.check_still(principal, principal.until_us + 1)


# --- TLS ---------------------------------------------------------------------------------


@pytest.mark.parametrize("starts_tls", [False, True])
def test_the_directory_proves_its_name_before_a_password_is_sent(
    tmp_path: Path, starts_tls: bool
) -> None:
    ours, foreign = Authority(tmp_path, "ours"), Authority(tmp_path, "foreign")
    certificate, key = ours.certificate("directory")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate, key)
    with directory(context, starts_tls=starts_tls) as people:
        options = {"start_tls": starts_tls, "ca": str(ours.file)}
        with realm_of(people, **options) as realm:
            assert signed_in(realm, "ann", "secret").user == "ldap:ann"
        people.binds.clear()
        with realm_of(people, start_tls=starts_tls, ca=str(foreign.file)) as realm:
            assert isinstance(refusal(realm, "ann", "secret"), Unavailable)

        assert people.binds == []


def test_a_directory_that_refuses_tls_gets_no_password(people: Directory) -> None:
    with realm_of(people, start_tls=True) as realm:
        assert isinstance(refusal(realm, "ann", "secret"), Unavailable)
    assert people.binds == []


def test_a_client_sends_no_password_over_an_open_network() -> None:
    with pytest.raises(InvalidArgument, match=r"the password would be sent unencrypted to far\.x"):
        penstock.connect("penstock://ann:secret@far.x?sign_in=plain")
    with pytest.raises(InvalidArgument, match="allowed is plain"):
        penstock.connect("penstock://ann:secret@localhost?sign_in=scram")


# --- settings ----------------------------------------------------------------------------

GOOD = {"url": "ldaps://sso.example", "user_dn": "uid={user},dc=example"}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"url": "ldap://sso.example"}, "unencrypted"),
        ({"url": "https://sso.example"}, "ldaps://HOST"),
        ({"url": "ldaps://me:hush@sso.example"}, "ldaps://HOST"),
        ({"url": "ldaps://sso.example:port"}, "ldaps://HOST"),
        ({"start_tls": True}, "start_tls is for ldap://"),
        ({"user_dn": ""}, "either access.ldap.user_dn"),
        ({"base": "dc=example"}, "either access.ldap.user_dn"),
        ({"user_dn": "uid=user,dc=example"}, "must contain {user}"),
        ({"user_dn": "", "base": "dc=example", "filter": "(uid=ann)"}, "must contain {user}"),
        ({"bind_dn": "cn=reader"}, "belong together"),
        ({"group_filter": "(member={dn})"}, "needs access.ldap.group_base"),
        ({"ca": "missing.pem"}, "missing.pem"),
    ],
)
def test_settings_that_cannot_work_are_refused_at_the_start(
    changes: dict[str, Any], said: str
) -> None:
    options = {f"access__ldap__{name}": value for name, value in {**GOOD, **changes}.items()}
    with pytest.raises(InvalidArgument) as refused, penstock.Realm(**options):
        pass

    assert said in str(refused.value)
    assert "hush" not in str(refused.value)


def test_without_ldap3_the_start_names_the_missing_package(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ldap3", None)
    options = {f"access__ldap__{name}": value for name, value in GOOD.items()}

    with (
        pytest.raises(InvalidArgument, match=r"pip install 'penstock-realm\[ldap\]'"),
        penstock.Realm(**options),
    ):
        pass


def test_a_realm_without_a_directory_asks_none() -> None:
    assert not LdapRules().url
    with penstock.Realm(access__mode="mandatory", **QUICK) as realm:
        assert realm.access.ldap is None

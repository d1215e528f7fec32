"""Users, groups and rights of a cluster count for the local stores of its nodes (SEM N8)."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from penstock_core.access.rights import Principal
from penstock_core.vocabulary.errors import AccessDenied, IllegalState
from penstock_core.vocabulary.ports import Registry, inline
from penstock_server.runtime.access.access import AccessControl, AccessRules
from penstock_server.runtime.access.accounts import Accounts
from penstock_server.runtime.access.audit import Audit
from penstock_server.runtime.access.logins import Logins
from penstock_server.runtime.access.shared_accounts import SharedAccounts
from penstock_server.runtime.access.tokens import TokenRules, Tokens
from penstock_server.runtime.writer.clock import SystemClock
from penstock_server.storage.memory import MemoryRegistry
from tests.loops import on_a_loop

ANN = Principal("ann", "10.0.0.1")


def access_in(registry: Registry, shared: SharedAccounts | None = None) -> AccessControl:
    clock = SystemClock()
    return AccessControl(
        Accounts(registry, clock, inline, shared=shared),
        Tokens(TokenRules(), lambda _: b"", clock, offload=inline),
        Audit(clock),
        logins=Logins(clock),
        offload=inline,
        rules=AccessRules("mandatory"),
        clock=clock,
    )


class Both:
    """The realm of a cluster, and the local stores of a node."""

    def __init__(self) -> None:
        self.register = MemoryRegistry()
        self.shared = SharedAccounts(self.register)
        self.cluster = access_in(self.register)
        self.local = access_in(MemoryRegistry(), self.shared)

    async def begin(self) -> None:
        await self.cluster.begin()
        await self.shared.refresh()
        await self.local.begin()

    async def follow(self) -> None:
        assert await self.shared.refresh()
        await self.local.accounts.follow()


@pytest.mark.spec("N8")
@on_a_loop
async def test_rights_on_all_channels_apply_to_local_channels() -> None:
    accounts = Both()
    await accounts.begin()
    assert accounts.local.first_password == "", "the cluster has made the first administrator"
    assert accounts.local.accounts.knows("admin")

    await accounts.cluster.accounts.create_user("ann", "a long password")
    await accounts.cluster.accounts.grant("realm", "", "ann@*", rights=("access",))
    await accounts.cluster.accounts.grant("channel", "*", "ann@*", rights=("publish",))
    await accounts.follow()

    assert accounts.local.accounts.verifier_of("ann") == accounts.cluster.accounts.verifier_of(
        "ann"
    )
    accounts.local.require_publish(ANN, "channel", "readings")
    assert not await accounts.shared.refresh(), "nothing has changed since"


@pytest.mark.spec("N8")
@on_a_loop
async def test_a_right_revoked_in_the_cluster_ends_locally_and_listeners_are_called() -> None:
    accounts = Both()
    await accounts.begin()
    await accounts.cluster.accounts.create_user("ann")
    await accounts.cluster.accounts.grant("realm", "", "ann@*", rights=("access",))
    await accounts.cluster.accounts.grant("channel", "*", "ann@*", rights=("publish",))
    await accounts.follow()
    heard: list[str] = []
    accounts.local.on_changed(lambda: heard.append("lost"))

    await accounts.cluster.accounts.revoke("channel", "*", "ann@*")
    await accounts.follow()

    assert heard == ["lost"]
    with pytest.raises(AccessDenied):
        accounts.local.require_publish(ANN, "channel", "readings")


@pytest.mark.spec("N8")
@on_a_loop
async def test_rights_on_a_local_channel_belong_to_its_node_and_end_with_the_user() -> None:
    accounts = Both()
    await accounts.begin()
    await accounts.cluster.accounts.create_user("ann")
    await accounts.cluster.accounts.grant("realm", "", "ann@*", rights=("access",))
    await accounts.cluster.accounts.create_group("staff", ["ann"])
    await accounts.cluster.accounts.grant("channel", "readings", "admin@*", rights=("full",))
    await accounts.follow()
    assert accounts.local.accounts.entries("channel", "readings").entries == ()

    await accounts.local.created(ANN, "channel", "readings")
    await accounts.local.accounts.grant("channel", "prices", "group:staff", rights=("subscribe",))
    accounts.local.require_publish(ANN, "channel", "readings")
    changed_users: list[str] = []
    accounts.local.accounts.user_changed = changed_users.append
    await accounts.cluster.accounts.delete_user("ann")
    await accounts.cluster.accounts.delete_group("staff")
    await accounts.follow()

    assert changed_users == ["ann"]
    assert accounts.local.accounts.entries("channel", "readings").entries == ()
    assert accounts.local.accounts.entries("channel", "prices").entries == ()


@pytest.mark.spec("N8")
@pytest.mark.parametrize(
    "change",
    [
        lambda accounts: accounts.create_user("bob"),
        lambda accounts: accounts.delete_user("admin"),
        lambda accounts: accounts.set_password("admin", "a long password"),
        lambda accounts: accounts.create_group("staff"),
        lambda accounts: accounts.grant("realm", "", "bob@*", ("full",)),
        lambda accounts: accounts.grant("channel", "*", "bob@*", ("publish",)),
        lambda accounts: accounts.revoke("queue", "shop/*", "bob@*"),
    ],
)
@on_a_loop
async def test_shared_accounts_cannot_be_changed_at_one_node(
    change: Callable[[Accounts], object],
) -> None:
    machines = Both()
    await machines.begin()
    with pytest.raises(IllegalState, match="belong to the whole cluster"):
        await change(machines.local.accounts)  # type: ignore[misc]  # each of them is a coroutine

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
    both = Both()
    await both.begin()
    assert both.local.first_password == "", "the cluster has made the first administrator"
    assert both.local.accounts.knows("admin")

    await both.cluster.accounts.create_user("ann", "a long password")
    await both.cluster.accounts.grant("realm", "", "ann@*", rights=("access",))
    await both.cluster.accounts.grant("channel", "*", "ann@*", rights=("publish",))
    await both.follow()

    assert both.local.accounts.verifier_of("ann") == both.cluster.accounts.verifier_of("ann")
    both.local.require_publish(ANN, "channel", "readings")
    assert not await both.shared.refresh(), "nothing has changed since"


@pytest.mark.spec("N8")
@on_a_loop
async def test_a_right_revoked_in_the_cluster_ends_locally_and_listeners_are_called() -> None:
    both = Both()
    await both.begin()
    await both.cluster.accounts.create_user("ann")
    await both.cluster.accounts.grant("realm", "", "ann@*", rights=("access",))
    await both.cluster.accounts.grant("channel", "*", "ann@*", rights=("publish",))
    await both.follow()
    heard: list[str] = []
    both.local.on_changed(lambda: heard.append("lost"))

    await both.cluster.accounts.revoke("channel", "*", "ann@*")
    await both.follow()

    assert heard == ["lost"]
    with pytest.raises(AccessDenied):
        both.local.require_publish(ANN, "channel", "readings")


@pytest.mark.spec("N8")
@on_a_loop
async def test_rights_on_a_local_channel_belong_to_its_node_and_end_with_the_user() -> None:
    both = Both()
    await both.begin()
    await both.cluster.accounts.create_user("ann")
    await both.cluster.accounts.grant("realm", "", "ann@*", rights=("access",))
    await both.cluster.accounts.create_group("staff", ["ann"])
    await both.cluster.accounts.grant("channel", "readings", "admin@*", rights=("full",))
    await both.follow()
    assert both.local.accounts.entries("channel", "readings").entries == ()

    await both.local.created(ANN, "channel", "readings")
    await both.local.accounts.grant("channel", "prices", "group:staff", rights=("subscribe",))
    both.local.require_publish(ANN, "channel", "readings")
    gone: list[str] = []
    both.local.accounts.user_changed = gone.append
    await both.cluster.accounts.delete_user("ann")
    await both.cluster.accounts.delete_group("staff")
    await both.follow()

    assert gone == ["ann"]
    assert both.local.accounts.entries("channel", "readings").entries == ()
    assert both.local.accounts.entries("channel", "prices").entries == ()


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
    both = Both()
    await both.begin()
    with pytest.raises(IllegalState, match="belong to the whole cluster"):
        await change(both.local.accounts)  # type: ignore[misc]  # each of them is a coroutine

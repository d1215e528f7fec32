"""The adapter of the native front end for the matrix of operations and rights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import penstock
from penstock.client.sync.sync import Session
from penstock_core.api.channels import (
    DeleteChannel,
    DescribeChannel,
    DescribeColumns,
    EditChannel,
    Locate,
    MaintainChannel,
    PurgeChannel,
)
from penstock_core.api.durables import (
    CreateDurable,
    DeleteDurable,
    DescribeDelivery,
    DescribeDurable,
    ListDurables,
    PreviewSeek,
    PurgeDurable,
    SeekDurable,
    UnbindDurable,
)
from penstock_core.api.publishing import CommitStages
from penstock_core.api.realm import Ping
from penstock_core.api.requests import Request
from penstock_core.api.subscriptions import Attach, BrowseDurable, Unsubscribe
from penstock_core.api.transfers import BeginBackup, BeginExport, BeginImport, EndBackup, EndExport
from penstock_core.vocabulary.definitions import Definition
from penstock_core.vocabulary.identities import ChannelId
from penstock_core.vocabulary.start_positions import FromEarliest, FromLatest
from tests.access.matrix import CHANNEL, OTHER, PASSWORD, QUEUE, TOPICS, Caller, register
from tests.asking import ask


class NativeCaller:
    def __init__(self, session: Session, numbers: dict[str, ChannelId]) -> None:
        self._session = session
        self._numbers = numbers
        """Numbers of stores. A client without the right to open a store may know its number from
        elsewhere."""
        self._made = 0

    def try_(self, operation: str) -> None:
        getattr(self, "_" + operation.replace(".", "_"))()

    def _ask(self, message: Request[Any]) -> Any:
        return ask(self._session, message)

    def _fresh(self, what: str) -> str:
        self._made += 1
        return f"matrix/made-{what}-{self._made}"

    # --- the realm -----------------------------------------------------------------------

    def _session_open(self) -> None:
        self._ask(Ping())

    def _realm_watch(self) -> None:
        self._session.cluster()

    def _realm_describe(self) -> None:
        self._session.info()

    def _realm_pause(self) -> None:
        self._session.resume_publishing()

    def _realm_backup(self) -> None:
        self._ask(EndBackup(self._ask(BeginBackup())["backup"]))

    def _audit_read(self) -> None:
        self._session.access.audit(1)

    def _user_list(self) -> None:
        self._session.access.users()

    def _user_change(self) -> None:
        self._session.access.delete_user("nobody")

    def _group_list(self) -> None:
        self._session.access.groups()

    def _group_change(self) -> None:
        self._session.access.delete_group("nothing")

    def _realm_acl_read(self) -> None:
        self._session.access.entries()

    def _realm_acl_change(self) -> None:
        self._session.access.revoke("nobody@*")

    def _mqtt_sessions(self) -> None:
        self._session.mqtt.sessions()

    def _mqtt_session_end(self) -> None:
        self._session.mqtt.end_session("nobody")

    def _me_read(self) -> None:
        self._session.access.me()

    def _me_password(self) -> None:
        self._session.access.set_password(self._session.access.me().user, PASSWORD, PASSWORD)

    def _transaction_describe(self) -> None:
        self._session.is_committed("unknown")

    def _pattern_list(self) -> None:
        self._session.durables.list()

    def _pattern_create(self) -> None:
        self._session.durables.create("nothing/*", "kept")

    def _pattern_delete(self) -> None:
        self._session.durables.delete("matrix/*", "unknown")

    def _join_list(self) -> None:
        self._session.joins.list()

    def _join_create(self) -> None:
        self._session.joins.create(OTHER, OTHER)

    def _join_delete(self) -> None:
        self._session.joins.delete(OTHER, QUEUE)

    # --- channels ------------------------------------------------------------------------

    def _channel_list(self) -> None:
        self._session.channels.list()

    def _queue_list(self) -> None:
        self._session.queues.list()

    def _channel_create(self) -> None:
        self._session.channels.create(self._fresh("channel"))

    def _queue_create(self) -> None:
        self._session.queues.create(self._fresh("queue"))

    def _channel_import(self) -> None:
        self._ask(BeginImport(self._fresh("import"), b"no manifest"))

    def _channel_open(self) -> None:
        self._session.channels.get(CHANNEL)

    def _queue_open(self) -> None:
        self._session.queues.get(QUEUE)

    def _channel_describe(self) -> None:
        self._ask(DescribeChannel(CHANNEL))

    def _queue_describe(self) -> None:
        self._ask(DescribeChannel(QUEUE, "queue"))

    def _channel_columns(self) -> None:
        self._ask(DescribeColumns(self._numbers[CHANNEL]))

    def _queue_columns(self) -> None:
        self._ask(DescribeColumns(self._numbers[QUEUE]))

    def _channel_edit(self) -> None:
        self._ask(EditChannel(CHANNEL, Definition(ttl=0)))

    def _queue_edit(self) -> None:
        self._ask(EditChannel(QUEUE, Definition(kind="queue", ttl=0)))

    def _channel_delete(self) -> None:
        self._ask(DeleteChannel(CHANNEL))  # refused, because it is a dead event store

    def _queue_delete(self) -> None:
        self._ask(DeleteChannel(QUEUE, "queue"))  # refused for the same reason

    def _channel_maintain(self) -> None:
        self._ask(MaintainChannel(CHANNEL))

    def _queue_maintain(self) -> None:
        self._ask(MaintainChannel(QUEUE, "queue"))

    def _channel_export(self) -> None:
        self._ask(EndExport(self._ask(BeginExport(CHANNEL))["export"]))

    def _queue_export(self) -> None:
        self._ask(EndExport(self._ask(BeginExport(QUEUE, "queue"))["export"]))

    def _channel_publish(self) -> None:
        self._ask(CommitStages(self._numbers[CHANNEL], "matrix", 1, stages=("no stage",)))

    def _queue_push(self) -> None:
        self._ask(CommitStages(self._numbers[QUEUE], "matrix", 1, stages=("no stage",)))

    def _channel_subscribe(self) -> None:
        self._ask(Locate(self._numbers[CHANNEL], 0, 1))

    def _queue_peek(self) -> None:
        self._ask(BrowseDurable(self._numbers[QUEUE], 901, "", credit=0))
        self._ask(Unsubscribe(901))

    def _queue_pop(self) -> None:
        self._ask(Attach(self._numbers[QUEUE], 902, "", pull=True))
        self._ask(Unsubscribe(902))

    def _channel_purge(self) -> None:
        self._ask(PurgeChannel(self._numbers[CHANNEL], 0, 0))

    def _queue_purge(self) -> None:
        self._ask(PurgeChannel(self._numbers[QUEUE], 0, 0))

    def _channel_redrive(self) -> None:
        self._session.redrive(CHANNEL)

    def _queue_redrive(self) -> None:
        self._session.redrive(QUEUE)

    def _channel_acl_read(self) -> None:
        self._session.access.entries(channel=CHANNEL)

    def _channel_acl_change(self) -> None:
        self._session.access.revoke("nobody@*", channel=CHANNEL)

    def _queue_acl_read(self) -> None:
        self._session.access.entries(queue=QUEUE)

    def _queue_acl_change(self) -> None:
        self._session.access.revoke("nobody@*", queue=QUEUE)

    def _topic_acl_read(self) -> None:
        self._session.access.entries(topic=TOPICS)

    def _topic_acl_change(self) -> None:
        self._session.access.revoke("nobody@*", topic=TOPICS)

    # --- durables ------------------------------------------------------------------------

    def _durable_list(self) -> None:
        self._ask(ListDurables(self._numbers[CHANNEL]))

    def _durable_describe(self) -> None:
        self._ask(DescribeDurable(self._numbers[CHANNEL], "kept"))

    def _durable_attach(self) -> None:
        self._ask(Attach(self._numbers[CHANNEL], 903, "kept", pull=True))
        self._ask(Unsubscribe(903))

    def _durable_browse(self) -> None:
        self._ask(BrowseDurable(self._numbers[CHANNEL], 904, "kept", credit=0))
        self._ask(Unsubscribe(904))

    def _durable_create(self) -> None:
        message = CreateDurable(self._numbers[CHANNEL], "kept", "shared", start=FromEarliest())
        self._ask(message)

    def _durable_delete(self) -> None:
        self._ask(DeleteDurable(self._numbers[CHANNEL], "unknown"))

    def _durable_purge(self) -> None:
        self._ask(PurgeDurable(self._numbers[CHANNEL], "kept", 0, last_id=0))

    def _durable_seek(self) -> None:
        self._ask(SeekDurable(self._numbers[CHANNEL], "kept", FromLatest()))

    def _durable_delivery(self) -> None:
        self._ask(DescribeDelivery(self._numbers[CHANNEL], 1))

    def _durable_preview(self) -> None:
        self._ask(PreviewSeek(self._numbers[CHANNEL], "kept", FromEarliest()))

    def _durable_unbind(self) -> None:
        self._ask(UnbindDurable(self._numbers[CHANNEL], "kept"))


class Native:
    name = "native"
    without = frozenset(
        {
            # The native protocol has no request for these, or uses that of another operation.
            "realm.reload",
            "connection.list",
            "connection.end",
            "queue.import",
        }
    )

    def __init__(self) -> None:
        self._urls: dict[penstock.Realm, str] = {}

    @contextmanager
    def signed_in(self, realm: penstock.Realm, user: str, password: str) -> Iterator[Caller]:
        if realm not in self._urls:
            self._urls[realm] = realm.listen()
        address = self._urls[realm].removeprefix("penstock://")
        with realm.connect() as trusted:
            numbers = {
                CHANNEL: trusted.channels.get(CHANNEL).number,
                QUEUE: trusted.queues.get(QUEUE).number,
            }
        url = f"penstock://{user}:{password.replace(' ', '%20')}@{address}"
        with penstock.connect(url) as session:
            yield NativeCaller(session, numbers)


register(Native)

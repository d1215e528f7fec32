"""Makes the database of Airflow in ``AIRFLOW_HOME`` with the DAGs of its folder, and prints, as one
line of JSON, what the provider makes of URIs, arguments and connections. Runs in Airflow's
environment."""

from __future__ import annotations

import json
import sys
from argparse import Namespace
from collections.abc import Callable
from typing import Any

from airflow.cli.commands.dag_command import dag_reserialize
from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import Connection
from airflow.utils.db import initdb

from penstock_airflow.provider import PenstockMessageQueueProvider
from penstock_airflow.trigger import PenstockTrigger, url_of
from penstock_core.vocabulary.errors import PenstockError


def result_of(call: Callable[..., Any], *arguments: Any, **keywords: Any) -> Any:
    """Return the result of a call, or the text of the error that it raised."""
    try:
        return call(*arguments, **keywords)
    except PenstockError as error:
        return str(error)


def arguments_of(**arguments: Any) -> Any:
    """Return the arguments of the trigger that ``MessageQueueTrigger`` makes."""
    return MessageQueueTrigger(scheme="penstock", **arguments).serialize()


def realm_url(**connection: Any) -> str:
    return url_of(Connection(conn_id="realm", **connection))


def observations() -> dict[str, Any]:
    """Return what the tests compare with their expectations, by name."""
    uri = PenstockMessageQueueProvider().trigger_kwargs
    return {
        "durable": arguments_of(channel="orders", durable="billing", window=7),
        "queue": arguments_of(queue_name="work", url="penstock://host"),
        "both": result_of(PenstockTrigger, queue_name="work", channel="orders", durable="billing"),
        "no durable": result_of(PenstockTrigger, channel="orders"),
        "none": result_of(PenstockTrigger),
        "window": result_of(PenstockTrigger, queue_name="work", window=0),
        "URI of a queue": uri("penstock://user@a:1,b:2/parcels/new"),
        "URI of a durable": uri("penstocks://a/orders%2F*?durable=billing"),
        "URI without a name": result_of(uri, "penstock://a"),
        "connection": realm_url(
            conn_type="penstocks", host="a", login="me@x", password="p/w", port=9001
        ),
        "plain connection": realm_url(conn_type="penstock", host="a:1,b:2"),
        "other connection": result_of(realm_url, conn_type="http", host="a"),
    }


if __name__ == "__main__":
    initdb()
    dag_reserialize.__wrapped__(Namespace(bundle_name=None))
    sys.stdout.write(f"{json.dumps(observations())}\n")

"""Penstock as a message queue of Apache Airflow: a trigger whose events are those of a realm::

from airflow.providers.common.messaging.triggers.msg_queue import MessageQueueTrigger
from airflow.sdk import DAG, Asset, AssetWatcher

trigger = MessageQueueTrigger(scheme="penstock", channel="orders", durable="billing")
orders = Asset("orders", watchers=[AssetWatcher(name="orders", trigger=trigger)])

with DAG("bill", schedule=orders):
    ...
"""

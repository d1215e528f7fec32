"""What a process of Spark's asks a realm once, and again."""

from __future__ import annotations

import pytest

from penstock.client.sync.sync import Session
from penstock.core.vocabulary.errors import NameDoesNotExist
from penstock.spark.connections import check_there, disconnect
from penstock.spark.options import Where


@pytest.mark.slow
def test_a_channel_that_was_there_is_not_asked_for_again(url: str, client: Session) -> None:
    where = Where(url, "orders")
    with pytest.raises(NameDoesNotExist, match="no channel 'orders'; create it first"):
        check_there(where)
    client.channels.create("orders")

    check_there(where)
    client.channels.delete("orders")

    check_there(where)
    disconnect()
    with pytest.raises(NameDoesNotExist, match="no channel 'orders'"):
        check_there(where)

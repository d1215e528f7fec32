"""Records of the register are read by nodes of older and newer versions."""

from __future__ import annotations

import msgspec

from penstock_cluster.owning.register_records import ClaimRecord, MemberRecord


def test_a_record_of_a_newer_version_is_read_without_what_is_not_known() -> None:
    newer = b'{"node":"n1","nonce":"a","counter":3,"invented_later":[1]}'

    assert msgspec.json.decode(newer, type=MemberRecord).counter == 3


def test_records_of_version_0_1_0_are_read() -> None:
    member = b'{"node":"n1","nonce":"a","counter":1,"address":"h:1","serves":{},"format":1}'
    claim = b'{"owner":"n1","nonce":"a","epoch":2,"format":1,"confirmed":4}'

    assert msgspec.json.decode(member, type=MemberRecord).unfit == ""
    assert msgspec.json.decode(claim, type=ClaimRecord).epoch == 2

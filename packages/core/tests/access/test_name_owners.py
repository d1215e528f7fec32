"""Names of producers, stages and transactions belong to the user who chose them."""

from __future__ import annotations

import pytest

from penstock_core.access.name_owners import owned, owner_of, plain
from penstock_core.vocabulary.errors import InvalidArgument


def test_the_same_name_of_two_users_is_two_names() -> None:
    assert owned("p", "alice") != owned("p", "bob")
    assert plain(owned("txn:p", "alice")) == "txn:p"
    assert owner_of(owned("p", "alice")) == "alice"


def test_without_a_user_a_name_is_nobodys() -> None:
    assert owned("p", "") == "p"
    assert owned("", "alice") == ""
    assert owner_of("p") == ""


def test_nobody_names_what_is_kept_of_another() -> None:
    with pytest.raises(InvalidArgument, match="control character"):
        owned(owned("p", "alice"), "bob")

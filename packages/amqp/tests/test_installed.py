"""Whether there is anything to test AMQP with."""

from __future__ import annotations

import sys

import pytest

import penstock
from penstock_core.vocabulary.errors import InvalidArgument


def test_proton_is_installed() -> None:
    pytest.importorskip(
        "proton",
        reason="python-qpid-proton is not installed, so no test of AMQP runs: it is built from "
        "source (extra amqp)",
    )


def test_without_proton_the_realm_says_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [*sys.modules]:
        if name.startswith("penstock_amqp."):
            monkeypatch.delitem(sys.modules, name)
    for name in ("proton", "cproton", "cproton_ffi"):
        monkeypatch.setitem(sys.modules, name, None)

    with (
        penstock.Realm() as realm,
        pytest.raises(InvalidArgument, match=r"pip install 'penstock-realm\[amqp\]'"),
    ):
        realm.listen_amqp()

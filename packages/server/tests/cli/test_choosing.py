"""Settings as the commands that start a server take them."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock_server.cli.shared.choosing import chosen_for_server

ENGINE = {"cluster.engine": "nats://a:4222"}


def test_a_node_that_other_machines_reach_asks_for_users() -> None:
    assert chosen_for_server(None, {**ENGINE, "listen.host": "10.0.0.1"}).access.mode == "mandatory"
    assert chosen_for_server(None, {**ENGINE, "http.host": "0.0.0.0"}).access.mode == "mandatory"


@pytest.mark.parametrize("more", [{}, {"access.mode": "optional"}])
def test_a_node_of_one_machine_and_one_with_a_mode_are_as_they_are_set(
    more: dict[str, str],
) -> None:
    host = "10.0.0.1" if more else "127.0.0.1"

    wanted = chosen_for_server(None, {**ENGINE, "listen.host": host, **more})

    assert wanted.access.mode == more.get("access.mode", "off")


def test_a_mode_in_the_file_is_kept_and_a_realm_alone_has_no_other_default(tmp_path: Path) -> None:
    file = tmp_path / "realm.toml"
    file.write_text("[access]\nmode = 'off'\n", encoding="utf-8")

    assert chosen_for_server(file, {**ENGINE, "listen.host": "10.0.0.1"}).access.mode == "off"
    assert chosen_for_server(None, {"listen.host": "10.0.0.1"}).access.mode == "off"

"""Settings: what is misspelt is refused and told, and where each value comes from is known."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from penstock_core.vocabulary.errors import InvalidArgument
from penstock_server.settings.loading import InForce, described, in_force, load, variable_of


def refusal(*arguments: Any, **options: Any) -> str:
    with pytest.raises(InvalidArgument) as refused:
        load(*arguments, **options)
    return str(refused.value)


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("PENSTOCK_LISTN_PORT", "PENSTOCK_LISTEN_PORT"),
        ("PENSTOCK_LISTEN_TLS_CERTIFCATE", "PENSTOCK_LISTEN_TLS_CERTIFICATE"),
        ("PENSTOCK_ACCES_MODE", "PENSTOCK_ACCESS_MODE"),
        ("PENSTOCK_PASWORD", "PENSTOCK_PASSWORD"),
    ],
)
def test_a_misspelt_variable_is_refused_with_the_nearest_right_one(
    variable: str, meant: str
) -> None:
    message = refusal(environment={variable: "hush-hush"})

    assert message == f"the environment variable {variable} is not a setting; did you mean {meant}?"


def test_a_variable_that_is_like_none_is_refused_with_where_they_are_listed() -> None:
    assert "`penstock settings --list`" in refusal(environment={"PENSTOCK_XYZZY": "1"})


def test_variables_of_clients_of_others_and_of_kubernetes_are_left_alone() -> None:
    environment = {
        "PENSTOCK_URL": "penstock://h",
        "PENSTOCK_PASSWORD": "x",
        "PATH": "/bin",
        "PENSTOCK_SERVICE_HOST": "10.0.0.1",
        "PENSTOCK_SERVICE_PORT_NATIVE": "9000",
        "PENSTOCK_PORT": "tcp://10.0.0.1:9000",
        "PENSTOCK_PORT_9000_TCP_ADDR": "10.0.0.1",
        "PENSTOCK_BLUE_SERVICE_HOST": "10.0.0.2",
    }

    assert load(environment=environment) == load()
    assert "PENSTOCK_PORT is not a setting" in refusal(environment={"PENSTOCK_PORT": "9001"})


@pytest.mark.parametrize(
    ("variable", "text", "wanted"),
    [
        ("PENSTOCK_LISTEN_PORT", "first", "listen.port) must be an integer"),
        ("PENSTOCK_HTTP_ENABLED", "perhaps", "http.enabled) must be true or false"),
    ],
)
def test_a_bad_value_names_its_variable(variable: str, text: str, wanted: str) -> None:
    message = refusal(environment={variable: text})

    assert message.startswith(f"{variable} (")
    assert message.endswith(f"{wanted}, not '{text}'")


def test_a_word_that_is_none_of_those_there_are_is_told_which_there_are() -> None:
    message = refusal(environment={"PENSTOCK_ACCESS_MODE": "on"})

    assert message.startswith("PENSTOCK_ACCESS_MODE (access.mode) must be ")
    assert message.endswith(", not 'on'")
    assert all(word in message for word in ("off", "optional", "mandatory"))
    assert "debug" in refusal("[log]\nlevel = 3\n", file="realm.toml")


def test_a_bad_value_in_a_file_names_file_and_option() -> None:
    message = refusal("[limits]\nmemory_bytes = -1\n", file="/etc/realm.toml")

    assert message == "/etc/realm.toml: limits.memory_bytes must be at least 0, not -1"


@pytest.mark.parametrize(
    ("document", "said"),
    [
        ("[listen]\nprot = 1", "listen.prot is not a setting (r.toml); did you mean listen.port?"),
        ("[lisen]\nport = 1", "lisen is not a setting (r.toml); did you mean listen?"),
        ("[mqtt]\nport = 1", "mqtt is not a setting (r.toml); did you mean listen.mqtt_port?"),
        ("amqp = 1", "amqp is not a setting (r.toml); did you mean listen.amqp_port?"),
        ("listen = 5", "r.toml: listen must be a table, [listen], not 5"),
        ("port: 5", "r.toml is not TOML"),
    ],
)
def test_what_a_file_may_not_say_is_told(document: str, said: str) -> None:
    assert refusal(document, file="r.toml").startswith(said)


def test_an_option_of_a_program_that_is_none_is_told() -> None:
    assert "did you mean access.mode?" in refusal(overrides={"access.mod": "optional"})


def test_relative_paths_in_a_file_are_of_its_folder_and_others_of_where_one_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HOME", "/people/me")
    document = """
http = {pipelines = "one:/two"}
access = {token_keys = "https://sso.example/keys"}
[listen]
tls_certificate = "tls/realm.pem"
tls_key = "/keys/realm.key"
tls_client_ca = "~/ca.pem"
"""
    settings = load(
        document,
        {"PENSTOCK_LISTEN_TLS_CLIENT_REVOKED": "gone.pem"},
        file="/etc/penstock/realm.toml",
    )

    assert settings.listen.tls_certificate == "/etc/penstock/tls/realm.pem"
    assert settings.listen.tls_key == "/keys/realm.key"
    assert settings.listen.tls_client_ca == "/people/me/ca.pem"
    assert settings.listen.tls_client_revoked == "gone.pem"
    assert settings.http.pipelines == "/etc/penstock/one:/two"
    assert settings.access.token_keys == "https://sso.example/keys"


def test_what_is_in_force_tells_value_unit_and_origin() -> None:
    options = {
        option.option: option
        for option in in_force(
            "[listen]\nport = 1\nhost = 'a'\n[limits]\nmemory_bytes = 5\n",
            {"PENSTOCK_LISTEN_PORT": "2", "PENSTOCK_LISTEN_IDLE_TIMEOUT_S": "3"},
            {"listen.idle_timeout_s": 4.5, "log.level": None},
        )
    }

    def described_option(option: InForce) -> tuple[Any, str, str]:
        return option.value, option.unit, option.origin

    assert list(options) == [path for path, *_ in described()]
    assert described_option(options["listen.host"]) == ("a", "", "file")
    assert described_option(options["listen.port"]) == (2, "", "environment")
    assert described_option(options["listen.idle_timeout_s"]) == (4.5, "s", "flag")
    assert described_option(options["limits.memory_bytes"]) == (5, "bytes", "file")
    assert described_option(options["limits.requests_per_s_max"]) == (0, "1/s", "default")
    assert described_option(options["storage.seal_interval_ms"]) == (250, "ms", "default")
    assert described_option(options["log.level"]) == ("info", "", "default")
    assert all(option.variable == variable_of(path) for path, option in options.items())


def test_a_password_in_a_url_is_not_shown() -> None:
    document = '[access]\ntoken_keys = "https://me:hush@sso.example/keys?key=hush"'
    values = {option.option: option.value for option in in_force(document)}

    assert values["access.token_keys"] == "https://***@sso.example/keys?***"


def test_every_path_option_is_an_option(tmp_path: Path) -> None:
    from penstock_server.settings.loading import PATHS

    assert {path for path, *_ in described()} >= PATHS


def test_every_option_that_is_described_is_taken_in_every_way() -> None:
    values = {path: value for path, value, _ in described() if value not in (None, (), {}, "")}

    from_flags = in_force("", {}, values)
    variables = {variable_of(path): str(value).lower() for path, value in values.items()}
    from_variables = in_force("", variables, {})

    assert {option.option for option in from_flags if option.origin == "flag"} == values.keys()
    assert {
        option.option for option in from_variables if option.origin == "environment"
    } == values.keys()
    assert len(values) > 50

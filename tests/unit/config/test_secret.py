"""What is never shown: not by itself, not in a configuration, not in an error."""

from __future__ import annotations

import copy
import dataclasses
import json
import pickle

import pytest

from kclient.config import ProducerConfig
from kclient.config.secret import Secret
from kclient.config.setting import Password
from kclient.net.sasl.token import OAuthToken


def test_a_secret_is_not_shown() -> None:
    secret = Secret("geheim")
    assert secret.reveal() == "geheim"
    shown = [repr(secret), str(secret), f"{secret}", repr({"a": secret})]
    assert not any("geheim" in text for text in shown)
    assert repr(secret) == "[hidden]"


@pytest.mark.parametrize("value", [3, None, b"geheim"])
def test_a_secret_is_text(value: object) -> None:
    with pytest.raises(TypeError, match=f"not a value of type {type(value).__name__}") as caught:
        Secret(value)  # type: ignore[arg-type]
    assert "geheim" not in str(caught.value)


def test_secrets_compare_and_travel() -> None:
    secret = Secret("geheim")
    assert secret == Secret("geheim") == Secret(secret)
    assert hash(secret) == hash(Secret("geheim"))
    assert secret != Secret("Geheim")
    assert secret != "geheim"
    assert not Secret("")
    assert secret
    assert (secret == "geheim") is False, "documented: a text never equals a secret"
    assert copy.copy(secret) is copy.deepcopy(secret) is secret


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_a_secret_is_not_written_down(protocol: int) -> None:
    config = ProducerConfig(bootstrap_servers=("a:1",), ssl_key_password=Secret("geheim"))
    for item in (Secret("geheim"), {"a": [Secret("geheim")]}, config, OAuthToken(value=Secret("geheim"))):
        with pytest.raises(TypeError, match="a Secret cannot be pickled: it would be readable"):
            pickle.dumps(item, protocol)
    with pytest.raises(TypeError):
        json.dumps(Secret("geheim"))


def test_settings_with_secrets_are_copied() -> None:
    config = ProducerConfig(bootstrap_servers=("a:1",), ssl_key_password=Secret("geheim"))
    for again in (copy.copy(config), copy.deepcopy(config), dataclasses.replace(config)):
        assert again == config
        assert again.ssl_key_password == Secret("geheim")
    assert dataclasses.asdict(config)["ssl_key_password"] == Secret("geheim")


def test_passwords_are_secrets() -> None:
    assert Password().parse(" geheim ") == Secret("geheim")
    assert Password(exact=True).parse(" geheim ") == Secret(" geheim ")
    assert Password().parse(Secret("x")) == Secret("x")
    with pytest.raises(ValueError, match="text"):
        Password().parse(5)


def test_a_configuration_does_not_show_them() -> None:
    config = ProducerConfig(bootstrap_servers=("a:1",), ssl_key_password=Secret("geheim"))
    assert "geheim" not in repr(config)
    assert "ssl_key_password=[hidden]" in repr(config)

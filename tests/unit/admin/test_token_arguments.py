"""Delegation tokens: what the admin client takes for one, and that its HMAC is shown nowhere."""

from __future__ import annotations

import copy
import pickle

import pytest

from kclient.admin import Admin, DelegationToken
from kclient.cli.app import run
from kclient.config.secret import Secret

pytestmark = pytest.mark.anyio

TOKEN = DelegationToken("id", Secret("aGlkZGVu"), "User:a", "User:b", ("User:c",), 1, 2, 3)


def test_an_hmac_is_shown_nowhere() -> None:
    assert "aGlkZGVu" not in repr(TOKEN) + str(TOKEN) + f"{TOKEN.hmac}"
    assert copy.deepcopy(TOKEN) == TOKEN
    with pytest.raises(TypeError, match="cannot be pickled"):
        pickle.dumps(TOKEN)


@pytest.mark.parametrize(
    ("given", "error"),
    [(b"aGlkZGVu", TypeError), (None, TypeError), ("", ValueError), ("hidden words", ValueError), ("hid", ValueError),
     ("ümlautäö", ValueError), (Secret("hidden words"), ValueError), ("aGlk\nZGVu", ValueError)],
)  # fmt: skip
async def test_what_is_no_hmac(given: object, error: type[Exception]) -> None:
    admin = Admin(bootstrap_servers="127.0.0.1:1")
    for call in (admin.renew_delegation_token, admin.expire_delegation_token):
        with pytest.raises(error, match="HMAC") as told:
            await call(given)  # type: ignore[arg-type]
        if given and isinstance(given, str):
            assert given not in str(told.value)


@pytest.mark.parametrize(
    ("arguments", "error", "told"),
    [
        ({"owner": "alice"}, ValueError, "the owner of a token is a principal, as User:alice, not 'alice'"),
        ({"owner": "User:"}, ValueError, "as User:alice"),
        ({"owner": 7}, TypeError, "the owner of a token is text"),
        ({"renewers": "User:a"}, TypeError, "in a list"),
        ({"renewers": [":a"]}, ValueError, "one of the renewers of a token is a principal"),
        ({"max_lifetime_ms": 0}, ValueError, "max_lifetime_ms is milliseconds, from 1 to"),
        ({"max_lifetime_ms": 1.5}, TypeError, "max_lifetime_ms is a whole number"),
        ({"max_lifetime_ms": 2**63}, ValueError, "max_lifetime_ms"),
    ],
)
async def test_what_cannot_be(arguments: dict[str, object], error: type[Exception], told: str) -> None:
    with pytest.raises(error, match=told):
        await Admin(bootstrap_servers="127.0.0.1:1").create_delegation_token(**arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["create", "--owner", "alice"], "as User:alice, not 'alice'"),
        (["create", "--max-lifetime", "0"], "--max-lifetime"),
        (["create", "--max-lifetime", str(2**63)], "max_lifetime_ms is milliseconds"),
        (["create", "--output", "xml"], "--output is table, json or yaml"),
        (["list", "alice"], "as User:alice"),
        (["renew", "id", "--renew-period", "-1"], "--renew-period"),
        (["expire"], "ID"),
    ],
)
def test_what_the_command_does_not_take(arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["tokens", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    assert told in capsys.readouterr().err

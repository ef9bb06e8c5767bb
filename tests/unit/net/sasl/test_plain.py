"""PLAIN, both sides."""

from __future__ import annotations

import pytest

from kclient.config.secret import Secret
from kclient.errors import ConfigError, IllegalStateError, SaslAuthenticationError
from kclient.net.sasl.mechanism import ClientIdentity
from kclient.net.sasl.plain import PlainClient, PlainServer, fixed_passwords

CHECK = fixed_passwords({"alice": "wonder,land ", "jörg": Secret("Ⅸ")})


def test_client() -> None:
    exchange = PlainClient("jörg", Secret("Ⅸ"))
    assert exchange.start() == b"\0j\xc3\xb6rg\0\xe2\x85\xa8"
    assert not exchange.done
    assert exchange.respond(b"") is None
    assert exchange.done
    with pytest.raises(IllegalStateError):
        exchange.start()


def test_nobody_has_no_password() -> None:
    for password in ("\0", "", "None"):
        assert not CHECK("nobody", Secret(password))
    assert CHECK("alice", Secret("wonder,land "))


def test_a_broker_that_asks_for_more() -> None:
    exchange = PlainClient("a", Secret("b"))
    exchange.start()
    with pytest.raises(SaslAuthenticationError, match="more than PLAIN"):
        exchange.respond(b"and your PIN?")


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("x", ""), ("a\0b", "x"), ("x", "a\0b"), ("x\udcff", "y"), ("x", "geheim\udcff")]
)
def test_what_cannot_be_sent(name: str, password: str) -> None:
    with pytest.raises(ConfigError, match="PLAIN") as caught:
        PlainClient(name, Secret(password))
    assert "geheim" not in repr(caught.value)
    assert caught.value.__context__ is None


def test_a_table_with_a_password_that_nobody_can_send() -> None:
    with pytest.raises(ConfigError, match="'alice'") as caught:
        fixed_passwords({"alice": "geheim\udcff"})
    assert "geheim" not in repr(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("message", [b"\0alice\0wonder,land ", b"alice\0alice\0wonder,land ", "\0jörg\0Ⅸ".encode()])
def test_server_accepts(message: bytes) -> None:
    exchange = PlainServer(CHECK)
    assert exchange.respond(message) == b""
    assert exchange.identity == ClientIdentity(message.split(b"\0")[1].decode(), "PLAIN")


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"\0alice\0wonder,land", "Invalid username or password"),
        (b"\0nobody\0wonder,land ", "Invalid username or password"),
        (b"\0nobody\0\x00", "three parts"),
        (b"\0alice\0", "not specified"),
        (b"\0\0wonder,land ", "not specified"),
        (b"root\0alice\0wonder,land ", "authorization id"),
        (b"alice", "three parts"),
        (b"", "three parts"),
        (b"\0\xff\0x", "three parts"),
    ],
)
def test_server_refuses(message: bytes, reason: str) -> None:
    exchange = PlainServer(CHECK)
    with pytest.raises(SaslAuthenticationError, match=reason) as caught:
        exchange.respond(message)
    assert "wonder" not in str(caught.value)
    assert exchange.identity is None
    with pytest.raises(IllegalStateError):
        exchange.respond(b"\0alice\0wonder,land ")

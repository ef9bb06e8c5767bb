"""OAUTHBEARER: both sides, unsecured tokens, and when tokens are renewed."""

from __future__ import annotations

import base64
import contextlib
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.config.secret import Secret
from kclient.errors import ConfigError, SaslAuthenticationError
from kclient.net.sasl.mechanism import ClientIdentity
from kclient.net.sasl.oauthbearer import InvalidTokenError, OAuthBearerClient, OAuthBearerServer
from kclient.net.sasl.plain import PlainServer
from kclient.net.sasl.scram import ScramServer
from kclient.net.sasl.token import OAuthToken, RefreshPolicy
from kclient.net.sasl.unsecured import accept_unsecured, unsecured_token


def accept(token: str, extensions: dict[str, str]) -> ClientIdentity:
    if token != "good":
        raise InvalidTokenError("never seen", scope="kafka", openid_configuration="https://id/x")
    return ClientIdentity("alice", "OAUTHBEARER", extensions=tuple(extensions.items()))


def test_a_good_token() -> None:
    client = OAuthBearerClient(OAuthToken(value=Secret("good"), extensions={"traceId": "123", "logicalCluster": "l c"}))
    server = OAuthBearerServer(accept)
    first = client.start()
    assert first == b"n,,\x01auth=Bearer good\x01traceId=123\x01logicalCluster=l c\x01\x01"
    assert client.respond(server.respond(first)) is None
    assert client.done
    assert server.identity is not None
    assert dict(server.identity.extensions) == {"traceId": "123", "logicalCluster": "l c"}


def test_a_bad_token_is_refused_in_two_steps() -> None:
    client, server = OAuthBearerClient(OAuthToken(value=Secret("bad"))), OAuthBearerServer(accept)
    challenge = server.respond(client.start())
    assert json.loads(challenge) == {
        "status": "invalid_token",
        "scope": "kafka",
        "openid-configuration": "https://id/x",
    }
    answer = client.respond(challenge)
    assert answer == b"\x01"
    assert client.refusal == "status invalid_token, scope kafka, openid-configuration https://id/x"
    with pytest.raises(SaslAuthenticationError, match="invalid_token"):
        server.respond(answer)
    assert server.identity is None
    with pytest.raises(SaslAuthenticationError, match="refused the OAuth token: status invalid_token"):
        client.respond(b"")  # a server that says yes in the end has not


def test_a_refusal_that_is_no_json() -> None:
    client = OAuthBearerClient(OAuthToken(value=Secret("bad")))
    client.start()
    client.respond(b"go\naway\xff")
    assert client.refusal == "go away�"


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "Invalid OAUTHBEARER"),
        (b"\xff", "Invalid OAUTHBEARER"),
        (b"n,,\x01\x01", "no bearer token"),
        (b"n,,\x01auth=Basic x\x01\x01", "no bearer token"),
        (b"n,,\x01auth=Bearer\x01\x01", "no bearer token"),
        (b"n,,\x01auth=Bearer good\x01", "Invalid OAUTHBEARER"),
        (b"p=tls-unique,,\x01auth=Bearer good\x01\x01", "channel binding"),
        (b"n,a=root,\x01auth=Bearer good\x01\x01", "authorization id"),
        (b"n,,\x01auth=Bearer good\x01x1=y\x01\x01", "Invalid OAUTHBEARER"),
    ],
)
def test_messages_that_a_server_refuses(message: bytes, reason: str) -> None:
    server = OAuthBearerServer(accept)
    with pytest.raises(SaslAuthenticationError, match=reason):
        server.respond(message)
    assert server.identity is None


@pytest.mark.parametrize("message", [b"n,,\x01auth=bearer good\x01\x01", b"y,a=alice,\x01auth=BEARER  good\x01\x01"])
def test_messages_that_a_server_accepts(message: bytes) -> None:
    assert OAuthBearerServer(accept).respond(message) == b""


@pytest.mark.parametrize(
    "token",
    [
        OAuthToken(value=Secret("")),
        OAuthToken(value=Secret("a b")),
        OAuthToken(value=Secret("a\x01b")),
        OAuthToken(value=Secret("a"), extensions={"auth": "x"}),
        OAuthToken(value=Secret("a"), extensions={"a1": "x"}),
        OAuthToken(value=Secret("a"), extensions={"a": ""}),
        OAuthToken(value=Secret("a"), extensions={"a": "x\x01y"}),
    ],
)
def test_what_cannot_be_sent(token: OAuthToken) -> None:
    with pytest.raises(ConfigError):
        OAuthBearerClient(token)


# --- tokens


def jwt(**claims: Any) -> str:
    parts = [
        base64.urlsafe_b64encode(json.dumps(part).encode()).decode().rstrip("=") for part in ({"alg": "x"}, claims)
    ]
    return ".".join([*parts, "c2lnbmF0dXJl"])


def test_the_claims_of_a_jwt() -> None:
    text = jwt(sub="alice", exp=2000, iat=1000.5, scope="a b")
    token = OAuthToken.from_jwt(text)
    assert token.value.reveal() == text
    assert (token.expires_at, token.issued_at, token.principal, token.scope) == (2000, 1000.5, "alice", {"a", "b"})
    assert text not in repr(token)
    assert OAuthToken.from_jwt(
        jwt(client="bob", roles=["x"]), subject_claim="client", scope_claim="roles"
    ) == OAuthToken(value=Secret(jwt(client="bob", roles=["x"])), principal="bob", scope=frozenset({"x"}))
    for opaque in ("opaque", "a.b.c", "a.e30.c.d", "a.WzFd.c"):
        assert OAuthToken.from_jwt(opaque) == OAuthToken(value=Secret(opaque))
    assert OAuthToken(value="text").value == Secret("text")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "claim", ["NaN", "Infinity", "1e400", "-1", "0", "true", '"soon"', "1" + "0" * 400, "null", "[]"]
)
def test_times_that_make_no_sense(claim: str) -> None:
    """JSON has numbers that no clock has; above all no token may last for ever by one of them."""
    body = base64.urlsafe_b64encode(f'{{"sub":"a","exp":{claim},"iat":{claim},"scope":{claim}}}'.encode()).decode()
    token = OAuthToken.from_jwt(f"eyJhbGciOiJub25lIn0.{body}.")
    assert (token.principal, token.expires_at, token.issued_at) == ("a", None, None)
    with pytest.raises(InvalidTokenError, match="it has expired"):
        accept_unsecured()(token.value.reveal(), {})


def test_nested_claims_are_no_trap() -> None:
    body = base64.urlsafe_b64encode(b"[" * 200_000).decode()
    assert OAuthToken.from_jwt(f"a.{body}.c").expires_at is None
    client = OAuthBearerClient(OAuthToken(value=Secret("x")))
    client.start()
    assert client.respond(b"[" * 2000) == b"\x01"


@pytest.mark.slow
@settings(max_examples=200)
@given(st.binary(max_size=200) | st.text("n,a=\x01auth Bearer.x", max_size=60).map(str.encode))
def test_any_bytes_end_in_an_answer_or_a_refusal(data: bytes) -> None:
    for server in (
        OAuthBearerServer(accept),
        PlainServer(lambda name, password: False),
        ScramServer("SCRAM-SHA-256", lambda name: None),
    ):
        with contextlib.suppress(SaslAuthenticationError):
            server.respond(data)
        assert server.identity is None or data.lower().count(b"good")


def test_what_a_token_shows() -> None:
    token = OAuthToken(value=Secret("geheim"), extensions={"key": "geheim"}, principal="alice")
    assert "geheim" not in repr(token)
    assert "alice" in repr(token)
    with pytest.raises(TypeError, match="int"):
        OAuthToken(value=3)  # type: ignore[arg-type]
    with pytest.raises(ConfigError) as caught:
        OAuthBearerClient(OAuthToken(value=Secret("geheim\udcff")))
    assert "geheim" not in repr(caught.value)


def test_unsecured_tokens() -> None:
    token = unsecured_token({"sub": "alice", "scope": ["kafka"]}, lifetime=10, now=100, extensions={"a": "b"})
    assert (token.principal, token.expires_at, token.issued_at, token.scope) == ("alice", 110, 100, {"kafka"})
    check = accept_unsecured(clock=lambda: 105)
    assert check(token.value.reveal(), {"a": "b"}) == ClientIdentity("alice", "OAUTHBEARER", 110, (("a", "b"),))
    assert accept_unsecured(required_scope="kafka", clock=lambda: 105)(token.value.reveal(), {}).principal == "alice"


@pytest.mark.parametrize(
    ("text", "options", "reason"),
    [
        ("opaque", {}, "not an unsecured JWT"),
        (jwt(sub="alice", exp=200), {}, "not an unsecured JWT"),
        (unsecured_token({"sub": "a"}, lifetime=5, now=100).value.reveal(), {}, "it has expired"),
        (unsecured_token({}, now=100).value.reveal(), {}, "no claim sub"),
        *(
            (unsecured_token({"sub": name}, now=100).value.reveal(), {}, "no claim sub")
            for name in (None, True, 7, ["a"], {"a": 1}, "", " ", "a\nUser:admin", "\ud800", "a" * 1025)
        ),
        (unsecured_token({"sub": "a"}, now=106).value.reveal(), {}, "issued in the future"),
        (unsecured_token({"sub": "a"}, now=107).value.reveal(), {"clock_skew": 1}, "issued in the future"),
        (unsecured_token({"sub": "a", "iat": 104, "exp": 104}).value.reveal(), {"clock_skew": 9}, "after it has ended"),
        (unsecured_token({"sub": "a"}, now=100).value.reveal(), {"required_scope": "x"}, "scope"),
    ],
)
def test_tokens_that_are_not_believed(text: str, options: Any, reason: str) -> None:
    with pytest.raises(InvalidTokenError, match=reason):
        accept_unsecured(clock=lambda: 105, **options)(text, {})


def test_a_skewed_clock_is_forgiven() -> None:
    text = unsecured_token({"sub": "a"}, lifetime=5, now=100).value.reveal()
    found = accept_unsecured(clock=lambda: 105, clock_skew=1)(text, {})
    assert (found.principal, found.expires_at) == ("a", 106), "a session that has ended before it begins is refused"


@pytest.mark.parametrize(
    ("life", "policy", "expected"),
    [
        (10_000, {}, 8_250),  # 0.8 and half of the jitter
        (10_000, {"window_factor": 0.5, "window_jitter": 0.0}, 5_000),
        (1_000, {}, 700),  # 300 s before the end
        (400, {}, 100),  # 0.825 would be 330, the end of the buffer 100, and 60 the least
        (361, {}, 61),
        (359, {}, 359 * 0.825),  # buffer and period do not fit into it: they give way
        (30, {"min_period": 0.0, "buffer": 0.0}, 30 * 0.825),
    ],
)
def test_when_tokens_are_renewed(life: int, policy: Any, expected: float) -> None:
    token = OAuthToken(value=Secret("x"), expires_at=1000 + life, issued_at=1000)
    assert RefreshPolicy(**policy).refresh_at(token, 1000, chance=0.5) == pytest.approx(1000 + expected)


def test_a_token_without_end_is_not_renewed() -> None:
    assert RefreshPolicy().refresh_at(OAuthToken(value=Secret("x")), 1000) is None
    # issued long ago: at once rather than in the past
    old = OAuthToken(value=Secret("x"), expires_at=1010, issued_at=0)
    assert RefreshPolicy().refresh_at(old, 1000) == 1000

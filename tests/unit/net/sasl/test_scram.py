"""SCRAM: the RFC's examples, both sides against each other, and everything that one side must not accept."""

from __future__ import annotations

import base64
import hashlib
import hmac

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kclient.config.secret import Secret
from kclient.errors import ConfigError, IllegalStateError, SaslAuthenticationError
from kclient.net.sasl.mechanism import ClientIdentity, ExchangeState
from kclient.net.sasl.scram import (
    SCRAM_MECHANISMS,
    ScramClient,
    ScramCredential,
    ScramDecoys,
    ScramServer,
    ScramToken,
)
from kclient.net.sasl.session import server_mechanisms

MECHANISMS = sorted(SCRAM_MECHANISMS)
SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
# RFC 7677, section 3
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def client(password: str = "pencil") -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", Secret(password), nonce="rOprNGfwEbeRWgbNEkqO")


def server(**users: str) -> ScramServer:
    table = {
        name: ScramCredential.derive("SCRAM-SHA-256", password, salt=SALT)
        for name, password in (users or {"user": "pencil"}).items()
    }
    return ScramServer("SCRAM-SHA-256", table.get, nonce="%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0")


def test_the_rfc_example_as_client() -> None:
    exchange = client()
    assert exchange.start() == CLIENT_FIRST
    assert exchange.respond(SERVER_FIRST) == CLIENT_FINAL
    assert not exchange.done
    assert exchange.respond(SERVER_FINAL) is None
    assert exchange.done
    with pytest.raises(IllegalStateError, match="DONE"):
        exchange.respond(b"")


def test_the_rfc_example_as_server() -> None:
    exchange = server()
    assert exchange.respond(CLIENT_FIRST) == SERVER_FIRST
    assert exchange.identity is None
    assert exchange.respond(CLIENT_FINAL) == SERVER_FINAL
    assert exchange.identity == ClientIdentity("user", "SCRAM-SHA-256")
    with pytest.raises(IllegalStateError):
        exchange.respond(CLIENT_FIRST)


def run(
    mechanism: str, name: str, password: str, known: dict[str, ScramCredential], decoys: ScramDecoys | None = None
) -> ScramServer:
    mine = ScramClient(mechanism, name, Secret(password))
    theirs = ScramServer(mechanism, known.get, decoys=decoys)
    message: bytes | None = mine.start()
    while message is not None:
        message = mine.respond(theirs.respond(message))
    assert mine.done
    return theirs


@settings(max_examples=25)
@given(
    mechanism=st.sampled_from(MECHANISMS),
    name=st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
    password=st.text(st.characters(codec="utf-8"), min_size=1, max_size=20),
)
def test_any_name_and_password(mechanism: str, name: str, password: str) -> None:
    exchange = run(mechanism, name, password, {name: ScramCredential.derive(mechanism, password)})
    assert exchange.identity is not None
    assert exchange.identity.principal == name


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_wrong_password_and_unknown_user_look_alike(mechanism: str) -> None:
    known = {"alice": ScramCredential.derive(mechanism, "right")}
    texts = []
    for name, password in (("alice", "wrong"), ("nobody", "right")):
        with pytest.raises(SaslAuthenticationError, match="invalid credentials") as caught:
            run(mechanism, name, password, known)
        texts.append(str(caught.value))
        assert password not in texts[-1]
    assert texts[0] == texts[1]
    salts = {ScramServer(mechanism, known.get).respond(b"n,,n=nobody,r=abc").split(b",")[1] for _ in range(3)}
    assert len(salts) == 1  # else who asks twice would know


def offered(exchange: object, name: str) -> tuple[bytes, int]:
    """Salt and iterations that a server shows for a name."""
    assert isinstance(exchange, ScramServer)
    _, salt, iterations = exchange.respond(f"n,,n={name},r=abc".encode()).decode().split(",")
    return base64.b64decode(salt.removeprefix("s=")), int(iterations.removeprefix("i="))


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_decoys_look_like_the_credentials_that_are_kept(mechanism: str) -> None:
    known = {"alice": ScramCredential.derive(mechanism, "x", iterations=8192, salt=bytes(range(16)))}
    decoys = ScramDecoys(iterations=8192, salt_bytes=16)
    alice, nobody = (offered(ScramServer(mechanism, known.get, decoys=decoys), name) for name in ("alice", "nobody"))
    assert alice == (bytes(range(16)), 8192)
    assert (len(nobody[0]), nobody[1]) == (16, 8192)
    with pytest.raises(SaslAuthenticationError, match="invalid credentials"):
        run(mechanism, "nobody", "x", known, decoys)
    name = "scram_" + mechanism[6:].lower().replace("-", "_")
    made = server_mechanisms(scram_decoys=decoys, **{name: known.get})  # type: ignore[arg-type]
    assert offered(made[mechanism](), "nobody") == nobody


def test_salts_of_decoys() -> None:
    first, same = (ScramDecoys(key=b"k" * 32, salt_bytes=64) for _ in range(2))
    assert first.credential("SCRAM-SHA-256", "bob") == same.credential("SCRAM-SHA-256", "bob")
    salts = [first.credential(mechanism, name).salt for mechanism in MECHANISMS for name in ("bob", "eve")]
    assert len(set(salts)) == 4  # those who exist have a salt for each mechanism too
    assert {len(salt) for salt in salts} == {64}
    assert ScramDecoys().credential("SCRAM-SHA-256", "bob") != ScramDecoys().credential("SCRAM-SHA-256", "bob")
    assert "kkk" not in repr(first)
    default = ScramCredential.derive("SCRAM-SHA-256", "x")
    decoy = ScramDecoys().credential("SCRAM-SHA-256", "bob")
    assert (len(decoy.salt), decoy.iterations) == (len(default.salt), default.iterations)
    for options in ({"iterations": 4095}, {"salt_bytes": 0}, {"salt_bytes": 65}, {"key": b""}):
        with pytest.raises(ConfigError):
            ScramDecoys(**options)  # type: ignore[arg-type]


def test_the_decoy_has_no_password() -> None:
    """The keys of the decoy are known; a proof that fits them must not get anybody in."""
    exchange = ScramServer("SCRAM-SHA-256", lambda name: None)
    first = exchange.respond(b"n,,n=nobody,r=abc").decode()
    nonce = first.split(",")[0]
    for proof in (bytes(32), b""):
        with pytest.raises(SaslAuthenticationError):
            exchange.respond(f"c=biws,{nonce},p={base64.b64encode(proof).decode() or '='}".encode())
        exchange.state = ExchangeState.FIRST


def test_kafka_encodings() -> None:
    """A comma and an equals sign in a name; a delegation token."""
    assert ScramClient("SCRAM-SHA-512", "a=b,c", Secret("x"), nonce="N").start() == b"n,,n=a=3Db=2Cc,r=N"
    token = ScramClient("SCRAM-SHA-256", "id", Secret("x"), token_auth=True, nonce="N")
    assert token.start() == b"n,,n=id,r=N,tokenauth=true"


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"", "malformed"),
        (b"\xff\xfe", "UTF-8"),
        (b"r=other,s=AAAA,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=AAAA,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=4095", "4095 SCRAM iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=9999999", "9999999 SCRAM iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=99999999999999", "99999999999999 SCRAM iterations; this client computes"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=A,i=4096", "base64"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=-1", "malformed"),
        (b"m=ext,r=rOprNGfwEbeRWgbNEkqOx,s=AAAA,i=4096", "malformed"),
        (b"e=other-error", "other-error"),
    ],
)
def test_first_challenges_that_a_client_refuses(challenge: bytes, reason: str) -> None:
    exchange = client()
    exchange.start()
    with pytest.raises(SaslAuthenticationError, match=reason):
        exchange.respond(challenge)
    assert exchange.state is ExchangeState.FAILED


@pytest.mark.parametrize(
    ("challenge", "reason"),
    [
        (b"v=AAAA", "did not prove"),
        (SERVER_FINAL.replace(b"6", b"7"), "did not prove"),
        (b"v=A", "base64"),
        (b"", "malformed"),
        (b"e=invalid-proof", "invalid-proof"),
    ],
)
def test_last_challenges_that_a_client_refuses(challenge: bytes, reason: str) -> None:
    """Above all a server that only says yes: it has to prove that it knows the password."""
    exchange = client()
    exchange.start()
    exchange.respond(SERVER_FIRST)
    with pytest.raises(SaslAuthenticationError, match=reason):
        exchange.respond(challenge)
    assert not exchange.done


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (b"", "Invalid SCRAM"),
        (b"\xff", "UTF-8"),
        (b"n,,n=,r=abc", "Invalid SCRAM"),
        (b"n,,n=a=b,r=abc", "Invalid SCRAM"),
        (b"n,,r=abc", "Invalid SCRAM"),
        (b"p=tls-unique,,n=user,r=abc", "channel binding"),
        (b"n,,m=x,n=user,r=abc", "mandatory"),
        (b"n,a=root,n=user,r=abc", "authorization id"),
        (b"n,,n=user,r=abc,tokenauth=true", "delegation tokens"),
        (b"n,,n=" + b"u" * 20_000 + b",r=abc", "Invalid SCRAM"),
    ],
)
def test_first_messages_that_a_server_refuses(message: bytes, reason: str) -> None:
    exchange = server()
    with pytest.raises(SaslAuthenticationError, match=reason):
        exchange.respond(message)
    assert exchange.state is ExchangeState.FAILED
    assert exchange.identity is None


@pytest.mark.parametrize(
    "message",
    [
        b"",
        CLIENT_FINAL.replace(b"biws", b"eSws"),
        CLIENT_FINAL.replace(b"hvYD", b"hvYE"),
        CLIENT_FINAL.replace(b"dHzb", b"dHza"),
        CLIENT_FINAL.split(b",p=")[0],
        CLIENT_FINAL.split(b",p=")[0] + b",p=A",
        CLIENT_FINAL.split(b",p=")[0] + b",p=AAAA",
        CLIENT_FINAL.replace(b"rOpr", b"xOpr"),
    ],
)
def test_last_messages_that_a_server_refuses(message: bytes) -> None:
    exchange = server()
    exchange.respond(CLIENT_FIRST)
    with pytest.raises(SaslAuthenticationError):
        exchange.respond(message)
    assert exchange.identity is None


def prove(final: bytes) -> bytes:
    """A proof for a final message, made by somebody who knows the password."""
    salted = hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096)
    client_key = hmac.digest(salted, b"Client Key", "sha256")
    message = b",".join([CLIENT_FIRST[3:], SERVER_FIRST, final])
    signature = hmac.digest(hashlib.sha256(client_key).digest(), message, "sha256")
    proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
    return final + b",p=" + base64.b64encode(proof)


@pytest.mark.parametrize(("old", "new"), [(b"c=biws", b"c=eSws"), (b"hvYD", b"hvYE"), (b"r=rOpr", b"r=xOpr")])
def test_a_right_proof_of_something_else_is_refused(old: bytes, new: bytes) -> None:
    """Another channel binding than at first (somebody in between changed it), or another nonce."""
    right = CLIENT_FINAL.split(b",p=")[0]
    assert prove(right) == CLIENT_FINAL
    exchange = server()
    exchange.respond(CLIENT_FIRST)
    with pytest.raises(SaslAuthenticationError, match="nonce or channel binding differ"):
        exchange.respond(prove(right.replace(old, new)))


def test_gs2_headers_that_a_server_accepts() -> None:
    """A client that could bind channels (y), and one that names itself as who it wants to be."""
    for header, binding in ((b"y,,", b"eSws"), (b"n,a=user,", base64.b64encode(b"n,a=user,"))):
        exchange = server()
        assert exchange.respond(header + CLIENT_FIRST[3:]) == SERVER_FIRST
        with pytest.raises(SaslAuthenticationError, match="invalid credentials"):
            exchange.respond(CLIENT_FINAL.replace(b"biws", binding))  # right binding, but the proof is for another


def test_credentials_hold_no_password_and_show_no_key() -> None:
    made = ScramCredential.derive("SCRAM-SHA-256", "geheim")
    assert len(made.salt) >= 16
    assert made.salt != ScramCredential.derive("SCRAM-SHA-256", "geheim").salt
    assert "key" not in repr(made)
    assert "geheim" not in repr(made)
    for wrong in (4095, 0, 2_000_000):
        with pytest.raises(ConfigError, match=str(wrong)):
            ScramCredential.derive("SCRAM-SHA-256", "geheim", iterations=wrong)
        with pytest.raises(ConfigError, match=str(wrong)):  # no client would compute what a server shows of it
            ScramCredential(made.salt, wrong, made.stored_key, made.server_key)
    with pytest.raises(ConfigError, match="not empty"):
        ScramCredential.derive("SCRAM-SHA-256", "")
    with pytest.raises(ConfigError, match="expected one of the SCRAM mechanisms: SCRAM-SHA-256, SCRAM-SHA-512"):
        ScramCredential.derive("SCRAM-SHA-1", "x")
    with pytest.raises(ConfigError, match="UTF-8") as caught:
        ScramCredential.derive("SCRAM-SHA-256", "geheim\udcff")
    assert "geheim" not in repr(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize(
    ("name", "password"), [("", "x"), ("x", ""), ("a\0b", "x"), ("x\udcff", "y"), ("x", "geheim\udcff")]
)
def test_names_and_passwords_that_cannot_be_sent(name: str, password: str) -> None:
    with pytest.raises(ConfigError, match="SCRAM-SHA-256") as caught:
        ScramClient("SCRAM-SHA-256", name, Secret(password))
    assert "geheim" not in repr(caught.value)
    assert caught.value.__context__ is None


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_delegation_token_is_its_owner_for_a_while(mechanism: str) -> None:
    found = ScramToken(ScramCredential.derive(mechanism, "hmac"), "alice", 1234.5)
    tokens = {(mechanism, "id"): found}

    def lookup(name: str, token_id: str) -> ScramToken | None:
        return tokens.get((name, token_id))

    def users(name: str) -> ScramCredential | None:
        return ScramCredential.derive(mechanism, "password") if name == "alice" else None

    def log_in(name: str, password: str, *, token_auth: bool = True) -> ScramServer:
        one = ScramClient(mechanism, name, Secret(password), token_auth=token_auth)
        other = ScramServer(mechanism, users, tokens=lookup)
        answer = one.respond(other.respond(one.start()))
        assert answer is not None
        one.respond(other.respond(answer))
        return other

    assert log_in("id", "hmac").identity == ClientIdentity("alice", mechanism, 1234.5, by_token=True)
    assert log_in("alice", "password", token_auth=False).identity == ClientIdentity("alice", mechanism)
    for name, password, token_auth in (
        ("id", "wrong", True), ("id", "hmac", False), ("alice", "password", True), ("alice", "hmac", True),
        ("other", "hmac", True),
    ):  # fmt: skip
        with pytest.raises(SaslAuthenticationError, match="invalid credentials"):
            log_in(name, password, token_auth=token_auth)


@pytest.mark.parametrize(
    ("extension", "is_token"),
    [
        ("tokenauth=true", True), ("tokenauth=TRUE", True), ("x=y,tokenauth=true", True), ("tokenauth=true,x=y", True),
        ("tokenauth=false", False), ("tokenauth=truex", False), ("Tokenauth=true", False), ("xtokenauth=true", False),
    ],
)  # fmt: skip
def test_what_says_that_it_is_a_token(extension: str, is_token: bool) -> None:
    asked: list[str] = []

    def token(mechanism: str, token_id: str) -> None:
        asked.append(f"token {token_id}")

    def user(name: str) -> None:
        asked.append(f"user {name}")

    ScramServer("SCRAM-SHA-256", user, tokens=token).respond(f"n,,n=id,r=abc,{extension}".encode())
    assert asked == ["token id" if is_token else "user id"]

"""SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677): the password is proved, never sent, and both sides prove.

As in Kafka, names and passwords are taken as they are, in UTF-8: its broker and tools do not apply SASLprep, and who
did would be refused for some passwords. There is no channel binding.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, TypeAlias

from kclient.config.secret import Secret, check_encodable
from kclient.errors import ConfigError, SaslAuthenticationError
from kclient.net.sasl.mechanism import ClientIdentity, Exchange, ExchangeEvent, ExchangeState

__all__ = [
    "COSTLY_ITERATIONS",
    "MAX_ITERATIONS",
    "MIN_ITERATIONS",
    "SCRAM_MECHANISMS",
    "ScramClient",
    "ScramCredential",
    "ScramCredentials",
    "ScramDecoys",
    "ScramServer",
    "ScramToken",
    "ScramTokens",
]

SCRAM_MECHANISMS: Final = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}
"""The mechanisms, and the hash functions they are built on."""

MIN_ITERATIONS: Final = 4096
"""The least number of iterations that client and server accept (RFC 7677, and Kafka)."""

MAX_ITERATIONS: Final = 1_000_000
"""The most: 0.5 to 1.5 seconds of hashing. Kafka's users have 4096 to 16384, librdkafka's limit is this."""

COSTLY_ITERATIONS: Final = 10_000
"""What takes more than this, a few milliseconds, a client computes in a thread."""

_NONCE_BYTES = 24
_TEXT_LIMIT = 16_384
"""Bytes of a message that are looked at: a name of 1024 characters takes 4096 at most, and may come twice."""
_CLIENT_FIRST = re.compile(
    r"(?P<header>(?P<binding>n|y|p=[A-Za-z0-9.-]+),(?:a=(?P<authzid>[^,\0]+))?,)"
    r"(?P<bare>(?P<mandatory>m=[^,\0]*,)?n=(?P<name>[^,\0]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)"
    r"(?P<extensions>(?:,[A-Za-z]+=[^,\0]+)*))"
)
_SERVER_FIRST = re.compile(
    r"r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{0,18})(?:,.*)?"
)
_CLIENT_FINAL = re.compile(
    r"(?P<bare>c=(?P<binding>[A-Za-z0-9+/=]+),r=(?P<nonce>[\x21-\x2b\x2d-\x7e]+)(?:,[A-Za-z]+=[^,\0]+)*?)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FINAL = re.compile(r"(?:e=(?P<error>[^,\0]+)|v=(?P<verifier>[A-Za-z0-9+/=]+))(?:,.*)?")
_TOKEN_AUTH = re.compile(",tokenauth=(?i:true)(?:,|$)")
_SASL_NAME = re.compile(r"(?:[^=,\0]|=2C|=3D)+")


@dataclass(frozen=True, slots=True)
class ScramCredential:
    """What a server keeps of a user: enough to check a proof, not enough to make one, and never the password."""

    salt: bytes
    iterations: int
    """4096 to a million; a server itself never computes them, but its clients do."""
    stored_key: bytes = field(repr=False)
    server_key: bytes = field(repr=False)

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)

    @classmethod
    def derive(
        cls, mechanism: str, password: Secret | str, *, iterations: int = MIN_ITERATIONS, salt: bytes | None = None
    ) -> ScramCredential:
        """What to keep for a password; with many iterations it takes its time, so call it in a thread then.

        Args:
            mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
            password: The password.
            iterations: How costly guessing is made, 4096 to a million; ten thousand take about ten milliseconds.
            salt: Random bytes; made if None.

        Raises:
            ConfigError: If the mechanism is unknown, the password empty or no UTF-8 (a lone surrogate), or the
                iterations are too few or too many.
        """
        algorithm = _algorithm(mechanism)
        _check_iterations(iterations)
        text = Secret(password)
        if not text:
            raise ConfigError("SCRAM needs a password that is not empty")
        check_encodable("a SCRAM password", text)
        salt = secrets.token_bytes(_NONCE_BYTES) if salt is None else salt
        salted = hashlib.pbkdf2_hmac(algorithm, text.reveal().encode(), salt, iterations)
        return cls.of_salted(mechanism, salted, salt, iterations)

    @classmethod
    def of_salted(cls, mechanism: str, salted: bytes, salt: bytes, iterations: int) -> ScramCredential:
        """What to keep for a password that is salted and hashed already (RFC 5802, `SaltedPassword`).

        Args:
            mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
            salted: The password, hashed.
            salt: With which it was.
            iterations: How often it was.

        Raises:
            ConfigError: If the mechanism is unknown, or the iterations are too few or too many.
        """
        algorithm = _algorithm(mechanism)
        stored_key = hashlib.new(algorithm, _hmac(algorithm, salted, b"Client Key")).digest()
        return cls(bytes(salt), iterations, stored_key, _hmac(algorithm, salted, b"Server Key"))


ScramCredentials: TypeAlias = Callable[[str], ScramCredential | None]
"""Finds what is kept of a user; None for users that do not exist. It must not wait."""


@dataclass(frozen=True, slots=True)
class ScramToken:
    """What a server knows of a delegation token (KIP-48)."""

    credential: ScramCredential
    """Made of the token's HMAC in base64, which is its password."""
    owner: str
    """The user that a client with the token is."""
    expires_at: float
    """When the token ends, in seconds since the epoch."""


ScramTokens: TypeAlias = Callable[[str, str], ScramToken | None]
"""Finds a token, given the mechanism and the token's id; None for tokens that do not exist. It must not wait."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramDecoys:
    """What a server shows for users who do not exist, so that nobody can find out who does.

    It has to look like what is kept of the users who exist: that works if all credentials have the same iterations and
    salts of one size. Who raises the iterations derives all credentials anew.

    Args:
        iterations: Those of the credentials that are kept.
        salt_bytes: The size of their salts, 1 to 64; Kafka's tools make 25 or 26 bytes.
        key: Makes salts of names. With a random one, the default, the salts of unknown users differ after a restart,
            and in the next process; servers that are to look alike take the same 32 random bytes, kept like a password.

    Raises:
        ConfigError: If the iterations are too few or too many, the size is out of range or the key empty.
    """

    iterations: int = MIN_ITERATIONS
    salt_bytes: int = _NONCE_BYTES
    key: bytes = field(default_factory=lambda: secrets.token_bytes(32), repr=False)

    def __post_init__(self) -> None:
        _check_iterations(self.iterations)
        if not 1 <= self.salt_bytes <= 64:
            raise ConfigError(f"SCRAM decoys have salts of 1 to 64 bytes, not {self.salt_bytes}")
        if not self.key:
            raise ConfigError("SCRAM decoys need a key that is not empty")

    def credential(self, mechanism: str, username: str) -> ScramCredential:
        """The credential of nobody: the same salt for the same name, and keys that no password has.

        Args:
            mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`; each has salts of its own.
            username: The user who does not exist.
        """
        algorithm = _algorithm(mechanism)
        salt = _hmac("sha512", self.key, f"{mechanism}\0{username}".encode())[: self.salt_bytes]
        nothing = bytes(hashlib.new(algorithm).digest_size)
        return ScramCredential(salt, self.iterations, nothing, nothing)


class ScramClient(Exchange):
    """The client's side.

    Args:
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        username: The user, or the id of a delegation token.
        password: The password, or the token's key.
        token_auth: Whether it is a delegation token (KIP-48).
        nonce: For tests; random if None.

    Raises:
        ConfigError: If name or password is empty or holds a lone surrogate, which UTF-8 cannot carry, or the mechanism
            is unknown.
    """

    def __init__(
        self, mechanism: str, username: str, password: Secret, *, token_auth: bool = False, nonce: str | None = None
    ) -> None:
        super().__init__()
        self.name = mechanism
        self._algorithm = _algorithm(mechanism)
        if not username or not password:
            raise ConfigError(f"SASL {mechanism} needs a user name and a password that are not empty")
        if "\0" in username:
            raise ConfigError(f"SASL {mechanism} cannot send a user name with a zero character in it")
        check_encodable(f"SASL {mechanism}, user name or password", username, password)
        self._password = password
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._first = f"n={_escape(username)},r={self._nonce}{',tokenauth=true' if token_auth else ''}"
        self._server_signature = b""

    def start(self) -> bytes:
        """See `ClientMechanism`."""
        self._move(ExchangeEvent.BEGUN)
        return f"n,,{self._first}".encode()

    def respond(self, challenge: bytes) -> bytes | None:
        """See `ClientMechanism`."""
        self._expect(ExchangeState.FIRST, ExchangeState.FINAL)
        text = self._decode(challenge)
        if self.state is ExchangeState.FINAL:
            self._verify(text)
            self._move(ExchangeEvent.CONVINCED)
            return None
        answer = self._prove(text)
        self._move(ExchangeEvent.SPOKEN)
        return answer

    def is_costly(self, challenge: bytes) -> bool:
        """Whether `respond` to this takes so long that it belongs into a thread: beyond `COSTLY_ITERATIONS`."""
        if self.state is not ExchangeState.FIRST:
            return False
        match = _SERVER_FIRST.fullmatch(bytes(challenge[:_TEXT_LIMIT]).decode(errors="replace"))
        return match is not None and COSTLY_ITERATIONS < int(match["iterations"]) <= MAX_ITERATIONS

    def _prove(self, text: str) -> bytes:
        match = _SERVER_FIRST.fullmatch(text)
        if match is None:
            error = _SERVER_FINAL.fullmatch(text)
            if error is not None and error["error"]:
                raise self._failed(f"The broker refused the SCRAM exchange: {error['error']}")
            raise self._failed("The broker's first SCRAM message is malformed")
        nonce, iterations = match["nonce"], int(match["iterations"])
        if not nonce.startswith(self._nonce) or nonce == self._nonce:
            raise self._failed("The broker's SCRAM nonce does not continue the client's: somebody may be in between")
        if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
            raise self._failed(
                f"The broker asks for {iterations} SCRAM iterations; this client computes {MIN_ITERATIONS} to "
                f"{MAX_ITERATIONS} (Kafka's users have at most 16384)"
            )
        salt = self._decode_base64(match["salt"])
        final = f"c=biws,r={nonce}"
        message = f"{self._first},{text},{final}".encode()
        algorithm = self._algorithm
        salted = hashlib.pbkdf2_hmac(algorithm, self._password.reveal().encode(), salt, iterations)
        client_key = _hmac(algorithm, salted, b"Client Key")
        signature = _hmac(algorithm, hashlib.new(algorithm, client_key).digest(), message)
        self._server_signature = _hmac(algorithm, _hmac(algorithm, salted, b"Server Key"), message)
        return f"{final},p={base64.b64encode(_xor(client_key, signature)).decode()}".encode()

    def _verify(self, text: str) -> None:
        match = _SERVER_FINAL.fullmatch(text)
        if match is None:
            raise self._failed("The broker's last SCRAM message is malformed")
        if match["error"]:
            raise self._failed(f"The broker refused the SCRAM proof: {match['error']}")
        if not hmac.compare_digest(self._decode_base64(match["verifier"]), self._server_signature):
            raise self._failed("The broker did not prove that it knows the password: somebody may be in its place")

    def _decode(self, challenge: bytes) -> str:
        try:
            return bytes(challenge[:_TEXT_LIMIT]).decode()
        except UnicodeDecodeError:
            raise self._failed("The broker's SCRAM message is not UTF-8") from None

    def _decode_base64(self, text: str) -> bytes:
        data = _from_base64(text)
        if data is None:
            raise self._failed("The broker's SCRAM message holds malformed base64")
        return data

    def _failed(self, text: str) -> SaslAuthenticationError:
        self._move(ExchangeEvent.BROKEN)
        return SaslAuthenticationError(text)


class ScramServer(Exchange):
    """The server's side.

    A user who does not exist is given a salt all the same, and refused at the proof like a wrong password: the
    exchange does not tell which names exist, if `decoys` look like the credentials that are kept.

    Args:
        mechanism: `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        credentials: Finds what is kept of a user.
        decoys: What users who do not exist are shown; by default 4096 iterations, as `ScramCredential.derive` has.
        tokens: Finds delegation tokens; None for a server that has none.
        nonce: For tests; random if None.
    """

    def __init__(
        self,
        mechanism: str,
        credentials: ScramCredentials,
        *,
        decoys: ScramDecoys | None = None,
        tokens: ScramTokens | None = None,
        nonce: str | None = None,
    ) -> None:
        super().__init__()
        self.name = mechanism
        self.identity: ClientIdentity | None = None
        self._algorithm = _algorithm(mechanism)
        self._credentials = credentials
        self._tokens = tokens
        self._token: ScramToken | None = None
        self._decoys = decoys or _PLAIN_DECOYS
        self._nonce = nonce or secrets.token_urlsafe(_NONCE_BYTES)
        self._credential: ScramCredential | None = None
        self._username = ""
        self._binding = ""
        self._messages = ""

    def respond(self, response: bytes) -> bytes:
        """See `ServerMechanism`."""
        self._expect(ExchangeState.NEW, ExchangeState.FIRST)
        try:
            text = bytes(response[:_TEXT_LIMIT]).decode()
        except UnicodeDecodeError:
            raise self._refused("Invalid SCRAM message: it is not UTF-8") from None
        if self.state is ExchangeState.NEW:
            answer = self._begin(text)
            self._move(ExchangeEvent.BEGUN)
            return answer
        answer = self._check(text)
        self._move(ExchangeEvent.CONVINCED)
        token = self._token
        if token is None:
            self.identity = ClientIdentity(self._username, self.name)
        else:
            self.identity = ClientIdentity(token.owner, self.name, token.expires_at, by_token=True)
        return answer

    def _begin(self, text: str) -> bytes:
        match = _CLIENT_FIRST.fullmatch(text)
        if match is None or _SASL_NAME.fullmatch(match["name"]) is None:
            raise self._refused("Invalid SCRAM client first message")
        if match["binding"].startswith("p"):
            raise self._refused("Authentication failed: channel binding is not offered")
        if match["mandatory"]:
            raise self._refused("Authentication failed: an unknown mandatory SCRAM extension")
        by_token = _TOKEN_AUTH.search(match["extensions"]) is not None
        if by_token and self._tokens is None:
            raise self._refused("Authentication failed: delegation tokens are not known here")
        self._username = _unescape(match["name"])
        if match["authzid"] and _unescape(match["authzid"]) != self._username:
            raise self._refused("Authentication failed: the authorization id differs from the user name")
        self._binding = base64.b64encode(match["header"].encode()).decode()
        if by_token:
            assert self._tokens is not None
            self._token = self._tokens(self.name, self._username)
            self._credential = None if self._token is None else self._token.credential
        else:
            self._credential = self._credentials(self._username)
        self._nonce = match["nonce"] + self._nonce
        shown = self._credential or self._decoys.credential(self.name, self._username)
        answer = f"r={self._nonce},s={base64.b64encode(shown.salt).decode()},i={shown.iterations}"
        self._messages = f"{match['bare']},{answer}"
        return answer.encode()

    def _check(self, text: str) -> bytes:
        match = _CLIENT_FINAL.fullmatch(text)
        if match is None:
            raise self._refused("Invalid SCRAM client final message")
        if match["binding"] != self._binding or match["nonce"] != self._nonce:
            raise self._refused("Invalid SCRAM client final message: nonce or channel binding differ")
        algorithm = self._algorithm
        credential = self._credential or self._decoys.credential(self.name, self._username)
        message = f"{self._messages},{match['bare']}".encode()
        signature = _hmac(algorithm, credential.stored_key, message)
        proof = _from_base64(match["proof"]) or b""
        client_key = _xor(proof, signature) if len(proof) == len(signature) else b""
        stored_key = hashlib.new(algorithm, client_key).digest()
        if not hmac.compare_digest(stored_key, credential.stored_key) or self._credential is None:
            raise self._refused(f"Authentication failed due to invalid credentials with SASL mechanism {self.name}")
        verifier = _hmac(algorithm, credential.server_key, message)
        return f"v={base64.b64encode(verifier).decode()}".encode()

    def _refused(self, text: str) -> SaslAuthenticationError:
        self._move(ExchangeEvent.BROKEN)
        return SaslAuthenticationError(text)


def _check_iterations(iterations: int) -> None:
    if not MIN_ITERATIONS <= iterations <= MAX_ITERATIONS:
        raise ConfigError(f"SCRAM takes {MIN_ITERATIONS} to {MAX_ITERATIONS} iterations, not {iterations}")


def _algorithm(mechanism: str) -> str:
    try:
        return SCRAM_MECHANISMS[mechanism]
    except KeyError:
        raise ConfigError(f"expected one of the SCRAM mechanisms: {', '.join(SCRAM_MECHANISMS)}") from None


def _hmac(algorithm: str, key: bytes, message: bytes) -> bytes:
    return hmac.digest(key, message, algorithm)


def _xor(left: bytes, right: bytes) -> bytes:
    return bytes(a ^ b for a, b in zip(left, right, strict=True))


def _escape(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def _unescape(name: str) -> str:
    return name.replace("=2C", ",").replace("=3D", "=")


def _from_base64(text: str) -> bytes | None:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        return None


_PLAIN_DECOYS: Final = ScramDecoys()

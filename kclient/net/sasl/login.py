"""What a client authenticates with: made once from its settings, shared by all its connections."""

from __future__ import annotations

import inspect
import logging
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import anyio

from kclient.config.sasl_credentials import (
    CALLBACK_TIMEOUT,
    ClientCredentials,
    OAuthCredentials,
    PasswordCredentials,
    UnsecuredToken,
    check_extensions,
    check_token_source,
)
from kclient.config.secret import Secret
from kclient.errors import ConfigError, KafkaError, OAuthTokenError
from kclient.net.sasl.client_credentials import ClientCredentialsSource
from kclient.net.sasl.mechanism import ClientMechanism
from kclient.net.sasl.oauthbearer import OAuthBearerClient
from kclient.net.sasl.plain import PlainClient
from kclient.net.sasl.scram import SCRAM_MECHANISMS, ScramClient
from kclient.net.sasl.threads import AbandonableCalls, TooManyCallsError
from kclient.net.sasl.token import OAuthToken, RefreshPolicy, TokenSource
from kclient.net.sasl.unsecured import unsecured_token

if TYPE_CHECKING:
    from kclient.concurrency import Supervisor

__all__ = ["Login", "PasswordLogin", "TokenLogin", "login_for"]

logger: logging.Logger = logging.getLogger("kclient.net.sasl")

_PAUSE_AFTER_FAILURE = 10.0
"""Seconds until a source whose token did not help is asked again; for renewals that failed, as in the Java client."""

_LEAST_PAUSE = 0.1

_PASSWORD_MECHANISMS = ("PLAIN", *SCRAM_MECHANISMS)

_BUGS = (TypeError, AttributeError, NameError, NotImplementedError, AssertionError, ImportError, SyntaxError)
"""What a callback raises because it is wrong, not because of trouble that may pass."""


class Login(Protocol):
    """Begins authentications."""

    @property
    def mechanism(self) -> str:
        """Name of the SASL mechanism."""
        ...

    async def begin(self) -> ClientMechanism:
        """The client's side of a new authentication.

        Raises:
            AuthenticationError: If there is nothing to authenticate with, such as a token.
        """
        ...

    def refused(self) -> None:
        """A broker refused what this login gave last."""
        ...


class PasswordLogin:
    """PLAIN or SCRAM with one name and password.

    Args:
        mechanism: `PLAIN`, `SCRAM-SHA-256` or `SCRAM-SHA-512`.
        username: The user, or the id of a delegation token.
        password: The password, or the token's key.
        token_auth: Whether it is a delegation token; SCRAM only.

    Raises:
        ConfigError: If the mechanism is another, or they cannot be used with it.
    """

    def __init__(self, mechanism: str, username: str, password: Secret | str, *, token_auth: bool = False) -> None:
        if mechanism not in _PASSWORD_MECHANISMS:  # and is not shown: it may be the password, in the wrong place
            raise ConfigError(f"PasswordLogin takes one of the mechanisms {', '.join(_PASSWORD_MECHANISMS)}")
        self.mechanism = mechanism
        self._username = username
        self._password = Secret(password)
        self._token_auth = token_auth
        self._make()

    async def begin(self) -> ClientMechanism:
        """See `Login`."""
        return self._make()

    def refused(self) -> None:
        """See `Login`; there is no other password to try."""

    def _make(self) -> ClientMechanism:
        if self.mechanism == "PLAIN":
            return PlainClient(self._username, self._password)
        return ScramClient(self.mechanism, self._username, self._password, token_auth=self._token_auth)

    def __repr__(self) -> str:
        return f"<PasswordLogin {self.mechanism} {self._username}>"


class TokenLogin:
    """OAUTHBEARER with tokens that are fetched when the first is needed, and renewed in the background.

    Args:
        source: A function without arguments that gives a token, or the text of a JWT; async or not. What it raises is
            told in an `OAuthTokenError`, text and all: keep secrets out of it. An error of programming (`TypeError`
            and the like) is final, any other may pass.
        supervisor: Runs the task that renews; its owner outlives the login.
        policy: When to renew.
        read: Makes a token of a text.
        extensions: SASL extensions, for tokens that bring none.
        timeout: Seconds that the source may take; 60 by default. Who waits for its token then gets an error, and the
            next authentication asks it again.
        clock: Seconds since the epoch.

    Raises:
        ConfigError: If the source cannot be called without arguments, or the extensions cannot be sent.
    """

    mechanism = "OAUTHBEARER"

    def __init__(
        self,
        source: TokenSource,
        supervisor: Supervisor,
        policy: RefreshPolicy | None = None,
        *,
        read: Callable[[str], OAuthToken] = OAuthToken.from_jwt,
        extensions: dict[str, str] | None = None,
        timeout: float = CALLBACK_TIMEOUT,
        clock: Callable[[], float] = time.time,
    ) -> None:
        check_token_source(source, "the source of a TokenLogin")
        check_extensions(extensions or {})
        self.token: OAuthToken | None = None
        """The present token."""
        self._source = source
        self._supervisor = supervisor
        self._policy = policy or RefreshPolicy()
        self._read = read
        self._extensions = extensions or {}
        self._clock = clock
        self._renewing = False
        self._received = 0.0
        self._timeout = timeout
        self._timeouts = 0
        self._threads = AbandonableCalls()

    @cached_property
    def _lock(self) -> anyio.Lock:
        """Of the loop that uses it: a blocking client is made in a thread that may run another one."""
        return anyio.Lock()

    async def begin(self) -> ClientMechanism:
        """See `Login`.

        Raises:
            OAuthTokenError: If there is no token to be had, or it cannot be sent.
        """
        token = self.token
        if token is None or self._has_ended(token):
            before = self._timeouts
            async with self._lock:  # connections that begin together fetch one token together
                token = self.token
                if token is None or self._has_ended(token):
                    if self._timeouts != before:  # and give up together
                        raise self._timed_out()
                    token = await self._fetch()
            self._renew_in_time()
        return OAuthBearerClient(token)

    def refused(self) -> None:
        """See `Login`: the next authentication asks the source again, if it was not asked just now."""
        if self._clock() - self._received >= _PAUSE_AFTER_FAILURE:
            self.token = None

    def _has_ended(self, token: OAuthToken) -> bool:
        return token.expires_at is not None and token.expires_at <= self._clock()

    async def _ask(self) -> object:
        """What the source gives. A plain function may wait for a server: it runs in a thread of its own."""
        source = self._source
        if inspect.iscoroutinefunction(source) or inspect.iscoroutinefunction(getattr(source, "__call__", None)):  # noqa: B004
            found: object = source()
        else:
            found = await self._threads.run(source)
        return await found if inspect.isawaitable(found) else found

    async def _fetch(self) -> OAuthToken:
        found: object = None
        try:
            with anyio.move_on_after(self._timeout) as limit:
                found = await self._ask()
        except KafkaError:
            raise
        except TooManyCallsError as error:
            raise OAuthTokenError(f"the token callback hangs: {error}", retriable=True, fatal=False) from None
        except Exception as error:
            passing = not isinstance(error, _BUGS)
            raise OAuthTokenError(
                f"the token callback failed: {type(error).__name__}: {error}", retriable=passing, fatal=not passing
            ) from error
        if limit.cancelled_caught:
            self._timeouts += 1
            raise self._timed_out()
        if isinstance(found, str | Secret):
            found = self._read(Secret(found).reveal())
        if not isinstance(found, OAuthToken):
            raise OAuthTokenError(
                f"the token callback returned {type(found).__name__}, not an OAuthToken or the text of a JWT"
            )
        if self._has_ended(found):
            raise OAuthTokenError("the token callback returned an expired token", retriable=True, fatal=False)
        if self._extensions and not found.extensions:
            found = found.with_extensions(self._extensions)
        try:
            OAuthBearerClient(found)
        except ConfigError as error:  # to the client it is not a setting, but what its source gave
            raise OAuthTokenError(error.message) from None
        self._received = self._clock()
        self.token = found
        return found

    def _timed_out(self) -> OAuthTokenError:
        return OAuthTokenError(
            f"the token callback gave no token within {self._timeout:g} s (sasl.login.connect.timeout.ms and "
            "sasl.login.read.timeout.ms together)",
            retriable=True,
            fatal=False,
        )

    def _renew_in_time(self) -> None:
        if not self._renewing and self.token is not None and self.token.expires_at is not None:
            self._renewing = True
            self._supervisor.spawn(self._renew, name="renew the OAuth token")

    async def _renew(self) -> None:
        """Replace the token before it ends, again and again."""
        due = self._due()
        try:
            while due is not None:
                await anyio.sleep(max(due - self._clock(), _LEAST_PAUSE))
                due = self._due() if await self._renewed() else self._clock() + _PAUSE_AFTER_FAILURE
        finally:
            self._renewing = False

    def _due(self) -> float | None:
        """When the token that just came is to be replaced; None if never."""
        return None if self.token is None else self._policy.refresh_at(self.token, self._clock())

    async def _renewed(self) -> bool:
        try:
            async with self._lock:
                await self._fetch()
        except KafkaError as error:
            logger.warning("the OAuth token could not be renewed, the present one is used on: %s", str(error))
            return False
        logger.debug("the OAuth token of %s was renewed", self.token.principal if self.token else "")
        return True

    def __repr__(self) -> str:
        return f"<TokenLogin {self.token.principal if self.token else 'without a token yet'}>"


def login_for(credentials: PasswordCredentials | OAuthCredentials | None, supervisor: Supervisor) -> Login | None:
    """The login that a client's settings ask for; None without SASL.

    Args:
        credentials: `sasl_credentials` of the client's configuration.
        supervisor: Runs the task that renews tokens.
    """
    if credentials is None:
        return None
    if isinstance(credentials, PasswordCredentials):
        return PasswordLogin(
            credentials.mechanism, credentials.username, credentials.password, token_auth=credentials.token_auth
        )
    policy = RefreshPolicy(
        window_factor=credentials.window_factor,
        window_jitter=credentials.window_jitter,
        min_period=credentials.min_period,
        buffer=credentials.buffer,
    )

    def read(text: str) -> OAuthToken:
        return OAuthToken.from_jwt(text, scope_claim=credentials.scope_claim, subject_claim=credentials.sub_claim)

    return TokenLogin(
        _source(credentials),
        supervisor,
        policy,
        read=read,
        extensions=dict(credentials.extensions),
        timeout=_timeout(credentials),
    )


def _source(credentials: OAuthCredentials) -> TokenSource:
    source = credentials.source
    if isinstance(source, ClientCredentials):
        return ClientCredentialsSource(source, scope_claim=credentials.scope_claim, sub_claim=credentials.sub_claim)
    if isinstance(source, UnsecuredToken):
        return _unsecured(source)
    return source


def _timeout(credentials: OAuthCredentials) -> float:
    """An identity provider's attempts have limits of their own: this is for what hangs in spite of them."""
    source = credentials.source
    if isinstance(source, ClientCredentials):
        return source.retry_limit + source.connect_timeout + source.read_timeout + CALLBACK_TIMEOUT
    return credentials.callback_timeout


def _unsecured(settings: UnsecuredToken) -> TokenSource:
    async def make() -> OAuthToken:
        return unsecured_token(
            settings.claims,
            lifetime=settings.lifetime,
            principal_claim=settings.principal_claim,
            scope_claim=settings.scope_claim,
        )

    return make

"""Delegation tokens: making, renewing, expiring and describing them (KIP-48)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from kclient.admin.answers import failure
from kclient.admin.base import AdminBase
from kclient.admin.token_types import (
    DelegationToken,
    Principal,
    as_hmac,
    as_period,
    as_principal,
    as_principals,
    hmac_text,
    principal_text,
)
from kclient.cluster import Trial, version_for
from kclient.config.sasl_credentials import PasswordCredentials
from kclient.config.secret import Secret
from kclient.errors import DelegationTokenNotFoundError, ErrorCode, KafkaError, UnsupportedVersionError
from kclient.net.connection import Connection
from kclient.protocol.messages import (
    CreatableRenewers,
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribeDelegationTokenOwner,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)

_OWNERS_VERSION = 3
_AT_ONCE = -1
_PATIENCE = 2.0
"""Seconds in which a token that is unknown is asked for again: controllers know a new one a moment later."""
_REASONS: Final[Mapping[int, str]] = {
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED: "the cluster has no delegation tokens; delegation.token.secret.key, the "
    "same for all brokers and controllers, switches them on",
    ErrorCode.DELEGATION_TOKEN_NOT_FOUND: "the cluster has no token of this HMAC: it has expired, or another cluster "
    "made it",
    ErrorCode.DELEGATION_TOKEN_OWNER_MISMATCH: "this user is neither its owner, nor who asked for it, nor one of its "
    "renewers",
    ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED: "this user may not make tokens for others; the operation "
    "CREATE_TOKENS on the owner (a resource of type USER) allows it",
    ErrorCode.DELEGATION_TOKEN_EXPIRED: "it has expired, which cannot be undone; make another one",
    ErrorCode.INVALID_PRINCIPAL_TYPE: "renewers are principals of type User, as User:alice",
    ErrorCode.UNSUPPORTED_VERSION: "the cluster's metadata.version is too old for delegation tokens (Kafka 3.6's has "
    "them; update_features raises it)",
}


class TokenOperations(AdminBase):
    """The admin client's calls about delegation tokens."""

    async def create_delegation_token(
        self,
        *,
        owner: str | None = None,
        renewers: Iterable[str] = (),
        max_lifetime_ms: int | None = None,
        timeout: float | None = None,
    ) -> DelegationToken:
        """Makes a token with which others can log in as its owner (KIP-48; Kafka 1.1, with KRaft 3.6).

        Brokers learn of it a moment later; until then they refuse who logs in with it, and describe it to nobody.

        Where a broker does not answer and another attempt is made, the first may have made a token too:
        `describe_delegation_tokens` shows it.

        Args:
            owner: whom it stands for, as `User:alice` (KIP-373; Kafka 3.3); None for this user.
            renewers: who may renew and expire it beside its owner and this user, as `User:bob`.
            max_lifetime_ms: for how many milliseconds it can be used however often it is renewed, from 1 on; None, or
                more than brokers allow, for their `delegation.token.max.lifetime.ms` (7 days).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            DelegationTokenDisabledError: the cluster has none.
            UnsupportedByAuthenticationError: this client has not logged in, or with a token.
            DelegationTokenAuthorizationError: this user may not make tokens for that owner.
            InvalidPrincipalTypeError: a renewer is not of type `User`.
            UnsupportedVersionError: the brokers have no tokens, or none for other owners.
            TypeError, ValueError: an argument cannot be.
        """
        of = None if owner is None else as_principal(owner, "the owner of a token")
        others = as_principals(renewers, "renewers of a token")
        lifetime = as_period(max_lifetime_ms, "max_lifetime_ms", 1)
        what = "Creating a delegation token"

        def message(connection: Connection) -> CreateDelegationTokenRequest:
            request = CreateDelegationTokenRequest(
                renewers=[CreatableRenewers(principal_type=kind, principal_name=name) for kind, name in others],
                max_lifetime_ms=lifetime,
            )
            if of is not None:
                if version_for(connection, CreateDelegationTokenRequest) < _OWNERS_VERSION:
                    text = f"{connection.address} makes tokens for who asks only (Kafka 3.3 does for others)"
                    raise UnsupportedVersionError(text)
                request.owner_principal_type, request.owner_principal_name = of
            return request

        async def ask(trial: Trial) -> CreateDelegationTokenResponse:
            response = await self._ask_controller(trial, message, CreateDelegationTokenResponse, timeout)
            self._check_token_code(response.error_code, what)
            return response

        made = await self._retrying(ask, timeout, what)
        return DelegationToken(
            made.token_id,
            hmac_text(made.hmac),
            principal_text(made.principal_type, made.principal_name),
            _requester(made),
            tuple(principal_text(*each) for each in others),
            made.issue_timestamp_ms,
            made.expiry_timestamp_ms,
            made.max_timestamp_ms,
        )

    async def renew_delegation_token(
        self, hmac: Secret | str, *, renew_period_ms: int | None = None, timeout: float | None = None
    ) -> int:
        """Has a token end later, never after its `max_timestamp` (KIP-48).

        Args:
            hmac: its `DelegationToken.hmac`, or that as text.
            renew_period_ms: in how many milliseconds from now it ends then, from 1 on; None, or more than brokers
                allow, for their `delegation.token.expiry.time.ms` (a day).
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            When it ends now, in milliseconds since 1970.

        Raises:
            DelegationTokenNotFoundError: the cluster has no such token.
            DelegationTokenExpiredError: it has ended.
            DelegationTokenOwnerMismatchError: this user is neither owner, requester nor renewer.
            DelegationTokenDisabledError: the cluster has none.
            UnsupportedByAuthenticationError: this client has not logged in, or with a token.
            UnsupportedVersionError: the brokers have no tokens.
            TypeError, ValueError: an argument cannot be.
        """
        what = "Renewing a delegation token"
        request = RenewDelegationTokenRequest(
            hmac=as_hmac(hmac), renew_period_ms=as_period(renew_period_ms, "renew_period_ms", 1)
        )

        patience_ends = self._patience_ends(timeout, _PATIENCE)

        async def ask(trial: Trial) -> int:
            response = await self._ask_controller(trial, lambda _: request, RenewDelegationTokenResponse, timeout)
            self._check_token_code(response.error_code, what, patient=self._cluster.clock() < patience_ends)
            return response.expiry_timestamp_ms

        return await self._retrying(ask, timeout, what)

    async def expire_delegation_token(
        self, hmac: Secret | str, *, expiry_period_ms: int | None = None, timeout: float | None = None
    ) -> int:
        """Has a token end sooner, or at once (KIP-48).

        With one that is ended at once nobody logs in any more; who is connected by it stays until the end that it had
        before, or for `connections.max.reauth.ms` of the brokers. When one ends by time, brokers close the connections
        made with it, and without a reason those that come later, until the controller drops the token, once in
        `delegation.token.expiry.check.interval.ms` (an hour).

        Args:
            hmac: its `DelegationToken.hmac`, or that as text.
            expiry_period_ms: in how many milliseconds from now it ends, from 0 on, but not after its `max_timestamp`;
                None (Java's −1) ends it at once.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            When it ends now, in milliseconds since 1970.

        Raises:
            DelegationTokenNotFoundError: the cluster has no such token; the text says so where an attempt that was not
                answered may have ended it.
            DelegationTokenExpiredError: it has ended.
            DelegationTokenOwnerMismatchError: this user is neither owner, requester nor renewer.
            DelegationTokenDisabledError: the cluster has none.
            UnsupportedByAuthenticationError: this client has not logged in, or with a token.
            UnsupportedVersionError: the brokers have no tokens.
            TypeError, ValueError: an argument cannot be.
        """
        what = "Expiring a delegation token"
        period = _AT_ONCE if expiry_period_ms is None else as_period(expiry_period_ms, "expiry_period_ms", 0)
        request = ExpireDelegationTokenRequest(hmac=as_hmac(hmac), expiry_time_period_ms=period)
        patience_ends = self._patience_ends(timeout, _PATIENCE)
        unanswered = False

        async def ask(trial: Trial) -> int:
            nonlocal unanswered
            try:
                response = await self._ask_controller(trial, lambda _: request, ExpireDelegationTokenResponse, timeout)
            except KafkaError:
                unanswered = True
                raise
            patient = not unanswered and self._cluster.clock() < patience_ends
            try:
                self._check_token_code(response.error_code, what, patient=patient)
            except DelegationTokenNotFoundError as error:
                if not unanswered:
                    raise
                text = f"{error.message} (An earlier attempt that got no answer may have ended it.)"
                raise DelegationTokenNotFoundError(text) from None
            return response.expiry_timestamp_ms

        return await self._retrying(ask, timeout, what)

    async def describe_delegation_tokens(
        self, owners: Iterable[str] | None = None, *, timeout: float | None = None
    ) -> list[DelegationToken]:
        """The tokens that this user may see, with their HMACs: who sees one can log in with it (KIP-48).

        Those are tokens that it owns, asked for or may renew, and others by the operations DESCRIBE on a token or
        DESCRIBE_TOKENS on its owner.

        Args:
            owners: only tokens that one of these owns, asked for or may renew, as `User:alice`; None for all.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Returns:
            The tokens, sorted by owner and age.

        Raises:
            DelegationTokenDisabledError: the cluster has none.
            UnsupportedByAuthenticationError: this client has not logged in, or with a token.
            UnsupportedVersionError: the brokers have no tokens.
            TypeError, ValueError: these are no principals.
        """
        wanted = None if owners is None else as_principals(owners, "owners of tokens")
        self._check()
        if wanted is not None and not wanted:
            return []
        what = "Describing delegation tokens"
        response = await self._ask_any(
            DescribeDelegationTokenRequest(owners=_owners(wanted)),
            DescribeDelegationTokenResponse,
            timeout=timeout,
            what=what,
            check=lambda answer: self._check_token_code(answer.error_code, what),
        )
        found = [_described(row) for row in response.tokens]
        return sorted(found, key=lambda token: (token.owner, token.issue_timestamp, token.token_id))

    def _check_token_code(self, code: int, what: str, *, patient: bool = False) -> None:
        """Raises the error of a code, which brokers send without a text; with `patient` an unknown token passes."""
        not_allowed = code == ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED
        error = failure(code, what, self._not_allowed() if not_allowed else _REASONS.get(code))
        if isinstance(error, DelegationTokenNotFoundError) and patient:
            raise DelegationTokenNotFoundError(error.message, retriable=True)
        if error is not None:
            raise error

    def _not_allowed(self) -> str:
        """Why brokers do not speak of tokens with this client."""
        credentials, protocol = self._config.sasl_credentials, self._config.security_protocol
        if isinstance(credentials, PasswordCredentials) and credentials.token_auth:
            here = "this client has logged in with a token (sasl.tokenauth)"
        elif protocol == "PLAINTEXT":
            here = "this client has security.protocol = PLAINTEXT: set it to SASL_SSL and log in"
        else:
            here = f"this client has security.protocol = {protocol}"
        return (
            "brokers speak of tokens only with who has logged in by SASL, or by TLS with a certificate "
            f"(ssl.keystore.location), and not by a token itself; {here}"
        )


def _owners(wanted: Collection[Principal] | None) -> list[DescribeDelegationTokenOwner] | None:
    if wanted is None:
        return None
    return [DescribeDelegationTokenOwner(principal_type=kind, principal_name=name) for kind, name in wanted]


def _described(row: DescribedDelegationToken) -> DelegationToken:
    return DelegationToken(
        row.token_id,
        hmac_text(row.hmac),
        principal_text(row.principal_type, row.principal_name),
        _requester(row),
        tuple(principal_text(each.principal_type, each.principal_name) for each in row.renewers),
        row.issue_timestamp,
        row.expiry_timestamp,
        row.max_timestamp,
    )


def _requester(row: CreateDelegationTokenResponse | DescribedDelegationToken) -> str:
    """Who asked for a token: before KIP-373 that was the owner, and brokers do not tell."""
    if row.token_requester_principal_name:
        return principal_text(row.token_requester_principal_type, row.token_requester_principal_name)
    return principal_text(row.principal_type, row.principal_name)

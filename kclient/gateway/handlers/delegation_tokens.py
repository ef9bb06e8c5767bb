"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken (KIP-48, KIP-373)."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, ClassVar, Final

from kclient.acls import AclOperation, ResourceType
from kclient.errors import (
    DelegationTokenAuthorizationError,
    DelegationTokenDisabledError,
    InvalidPrincipalTypeError,
    InvalidRequestError,
    KafkaError,
    UnsupportedByAuthenticationError,
)
from kclient.gateway.contexts import ANONYMOUS
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.gateway.rows.delegation_tokens import TokenPrincipal
from kclient.gateway.security.delegation_tokens import USER
from kclient.net.fair_queue import Pace
from kclient.protocol.messages.tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribedDelegationToken,
    DescribedDelegationTokenRenewer,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import ConnectionContext, RequestContext
    from kclient.gateway.security.delegation_tokens import DelegationTokens, KnownToken

_AT_THE_BROKER: Final = (
    UnsupportedByAuthenticationError,
    DelegationTokenAuthorizationError,
    InvalidPrincipalTypeError,
)
"""What Kafka's brokers refuse by themselves, with -1 for all times; its controller says 0."""
_MOST_RENEWERS: Final = 100
_LONGEST_NAME: Final = 1024
_MOST_OWNERS: Final = 1000
_WITH_REQUESTER: Final = 3
"""The version since which others may be owners, and answers tell who asked (KIP-373)."""


class _TokenHandler(Handler):
    """What handlers of delegation tokens have in common."""

    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, tokens: DelegationTokens | None) -> None:
        self._access = access
        self._tokens = tokens

    def _there(self) -> DelegationTokens:
        """The tokens. Raises `DelegationTokenDisabledError` where there are none."""
        if self._tokens is None:
            raise DelegationTokenDisabledError(
                "there are no delegation tokens: the gateway is without delegation.token.secret.key"
            )
        return self._tokens


def _check_may_ask(client: ConnectionContext) -> None:
    """Refuse who has not said who it is, and who has said so with a token: it would live for ever by others.

    Raises:
        UnsupportedByAuthenticationError: It has.
    """
    protocol = client.advertised.security_protocol
    if client.by_token or protocol == "PLAINTEXT" or (protocol == "SSL" and client.principal == ANONYMOUS):
        raise UnsupportedByAuthenticationError(
            "delegation tokens are for clients that have logged in, and not with a token"
        )


def _no_time(error: KafkaError) -> int:
    """What an answer that refuses has in place of times."""
    return -1 if isinstance(error, _AT_THE_BROKER) else 0


def _caller(client: ConnectionContext) -> TokenPrincipal:
    return TokenPrincipal(client.principal.type, client.principal.name)


class CreateDelegationTokenHandler(_TokenHandler):
    """Answers CreateDelegationToken."""

    API: ClassVar[ApiKey] = ApiKey.CREATE_DELEGATION_TOKEN
    VERSIONS: ClassVar[VersionRange] = (0, 3)

    def begin(self, request: CreateDelegationTokenRequest, context: RequestContext) -> Finish:
        """Making one waits for the manager."""
        client = context.connection
        _check_may_ask(client)
        requester = _caller(client)
        owner = _owner(request, requester)
        if owner != requester and not self._access.allows(
            client, AclOperation.CREATE_TOKENS, ResourceType.USER, str(owner), asked=True
        ):
            raise DelegationTokenAuthorizationError(
                f"{requester} may not make tokens for {owner.type[:300]}:{owner.name[:300]}"
            )
        renewers = [TokenPrincipal(each.principal_type, each.principal_name) for each in request.renewers]
        if any(each.type != USER for each in renewers):
            raise InvalidPrincipalTypeError("only users may renew tokens: their principals have the type User")
        tokens = self._there()
        if len(renewers) > _MOST_RENEWERS:
            raise InvalidRequestError(f"{len(renewers)} renewers are more than a token may have: {_MOST_RENEWERS}")
        for each in (owner, *renewers):
            if len(str(each)) > _LONGEST_NAME or not str(each).isprintable():
                raise InvalidRequestError(
                    f"a principal has {_LONGEST_NAME} characters at most here, all of which can be printed"
                )
        answer = _about(owner, requester, context)
        return partial(self._finish, tokens, owner, requester, renewers, request.max_lifetime_ms, answer)

    async def _finish(
        self,
        tokens: DelegationTokens,
        owner: TokenPrincipal,
        requester: TokenPrincipal,
        renewers: list[TokenPrincipal],
        max_lifetime_ms: int,
        answer: CreateDelegationTokenResponse,
    ) -> CreateDelegationTokenResponse:
        made = await tokens.create(owner, requester, renewers, max_lifetime_ms)
        answer.issue_timestamp_ms, answer.expiry_timestamp_ms = made.row.issued_ms, made.row.expiry_ms
        answer.max_timestamp_ms, answer.token_id, answer.hmac = made.row.max_ms, made.token_id, made.hmac
        return answer

    def fail(
        self, request: CreateDelegationTokenRequest, context: RequestContext, error: KafkaError
    ) -> CreateDelegationTokenResponse:
        """The error, with whose token it would have been."""
        requester = _caller(context.connection)
        answer = _about(_owner(request, requester), requester, context)
        answer.issue_timestamp_ms = answer.expiry_timestamp_ms = answer.max_timestamp_ms = _no_time(error)
        put_error(answer, error, self.ROLE)
        return answer


def _owner(request: CreateDelegationTokenRequest, requester: TokenPrincipal) -> TokenPrincipal:
    """Who is to own the token: who asks for it, where nobody else is named."""
    if not request.owner_principal_name:
        return requester
    return TokenPrincipal(request.owner_principal_type or "", request.owner_principal_name)


def _about(owner: TokenPrincipal, requester: TokenPrincipal, context: RequestContext) -> CreateDelegationTokenResponse:
    answer = CreateDelegationTokenResponse(principal_type=owner.type, principal_name=owner.name)
    if context.api_version >= _WITH_REQUESTER:
        answer.token_requester_principal_type = requester.type
        answer.token_requester_principal_name = requester.name
    return answer


class RenewDelegationTokenHandler(_TokenHandler):
    """Answers RenewDelegationToken."""

    API: ClassVar[ApiKey] = ApiKey.RENEW_DELEGATION_TOKEN
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def begin(self, request: RenewDelegationTokenRequest, context: RequestContext) -> Finish:
        """Changing one waits for the manager."""
        _check_may_ask(context.connection)
        by = _caller(context.connection)
        return partial(self._finish, self._there(), bytes(request.hmac), request.renew_period_ms, by)

    async def _finish(
        self, tokens: DelegationTokens, secret: bytes, period_ms: int, by: TokenPrincipal
    ) -> RenewDelegationTokenResponse:
        return RenewDelegationTokenResponse(expiry_timestamp_ms=await tokens.renew(secret, period_ms, by))

    def fail(
        self, request: RenewDelegationTokenRequest, context: RequestContext, error: KafkaError
    ) -> RenewDelegationTokenResponse:
        """The error."""
        answer = RenewDelegationTokenResponse(expiry_timestamp_ms=_no_time(error))
        put_error(answer, error, self.ROLE)
        return answer


class ExpireDelegationTokenHandler(_TokenHandler):
    """Answers ExpireDelegationToken."""

    API: ClassVar[ApiKey] = ApiKey.EXPIRE_DELEGATION_TOKEN
    VERSIONS: ClassVar[VersionRange] = (0, 2)

    def begin(self, request: ExpireDelegationTokenRequest, context: RequestContext) -> Finish:
        """Changing one waits for the manager."""
        _check_may_ask(context.connection)
        by = _caller(context.connection)
        return partial(self._finish, self._there(), bytes(request.hmac), request.expiry_time_period_ms, by)

    async def _finish(
        self, tokens: DelegationTokens, secret: bytes, period_ms: int, by: TokenPrincipal
    ) -> ExpireDelegationTokenResponse:
        return ExpireDelegationTokenResponse(expiry_timestamp_ms=await tokens.expire(secret, period_ms, by))

    def fail(
        self, request: ExpireDelegationTokenRequest, context: RequestContext, error: KafkaError
    ) -> ExpireDelegationTokenResponse:
        """The error."""
        answer = ExpireDelegationTokenResponse(expiry_timestamp_ms=_no_time(error))
        put_error(answer, error, self.ROLE)
        return answer


class DescribeDelegationTokenHandler(_TokenHandler):
    """Answers DescribeDelegationToken: tokens with their HMACs, to those who may know them."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_DELEGATION_TOKEN
    VERSIONS: ClassVar[VersionRange] = (0, 3)
    ONLY_READS: ClassVar[bool] = True

    def begin(
        self, request: DescribeDelegationTokenRequest, context: RequestContext
    ) -> Finish | DescribeDelegationTokenResponse:
        """Finding what other gateways have made waits for the manager."""
        _check_may_ask(context.connection)
        tokens = self._there()
        if request.owners is None:
            return partial(self._finish, tokens, None, context)
        if len(request.owners) > _MOST_OWNERS:
            raise InvalidRequestError(f"{len(request.owners)} owners are asked for: {_MOST_OWNERS} at most at a time")
        if not request.owners:
            return DescribeDelegationTokenResponse()
        owners = {TokenPrincipal(each.principal_type, each.principal_name) for each in request.owners}
        return partial(self._finish, tokens, owners, context)

    async def _finish(
        self, tokens: DelegationTokens, owners: set[TokenPrincipal] | None, context: RequestContext
    ) -> DescribeDelegationTokenResponse:
        await tokens.catch_up()
        client = context.connection
        pace = Pace(client.flow)
        answer = DescribeDelegationTokenResponse()
        for token in tokens:
            await pace.pause()
            row = token.row
            asked = owners is None or not owners.isdisjoint((row.owner, row.requester, *row.renewers))
            if asked and self._may_see(token, client):
                answer.tokens.append(_described(token, context))
        return answer

    def _may_see(self, token: KnownToken, client: ConnectionContext) -> bool:
        allows = self._access.allows
        return (
            token.row.concerns(_caller(client))
            or allows(client, AclOperation.DESCRIBE, ResourceType.DELEGATION_TOKEN, token.token_id)
            or allows(client, AclOperation.DESCRIBE_TOKENS, ResourceType.USER, str(token.row.owner))
        )


def _described(token: KnownToken, context: RequestContext) -> DescribedDelegationToken:
    row = token.row
    answer = DescribedDelegationToken(
        principal_type=row.owner.type,
        principal_name=row.owner.name,
        issue_timestamp=row.issued_ms,
        expiry_timestamp=row.expiry_ms,
        max_timestamp=row.max_ms,
        token_id=token.token_id,
        hmac=token.hmac,
        renewers=[
            DescribedDelegationTokenRenewer(principal_type=each.type, principal_name=each.name) for each in row.renewers
        ],
    )
    if context.api_version >= _WITH_REQUESTER:
        answer.token_requester_principal_type = row.requester.type
        answer.token_requester_principal_name = row.requester.name
    return answer

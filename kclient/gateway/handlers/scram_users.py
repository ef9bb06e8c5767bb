"""AlterUserScramCredentials and DescribeUserScramCredentials: the users who log in by SCRAM (KIP-554)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, ClassVar, Final

from kclient.acls import AclOperation
from kclient.errors import (
    DuplicateResourceError,
    InvalidRequestError,
    KafkaError,
    ResourceNotFoundError,
    UnacceptableCredentialError,
    UnsupportedSaslMechanismError,
)
from kclient.gateway.error_codes import Role, put_error
from kclient.gateway.handlers.handler import Finish, Handler, VersionRange
from kclient.gateway.security.scram_users import ScramChange
from kclient.net.sasl.scram import MIN_ITERATIONS, ScramCredential
from kclient.protocol.lazy_arrays import lazily
from kclient.protocol.messages.users import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    CredentialInfo,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kclient.protocol.registry import ApiKey

if TYPE_CHECKING:
    from kclient.gateway.access import Access
    from kclient.gateway.contexts import RequestContext
    from kclient.gateway.security.scram_users import ScramUsers

_MECHANISMS: Final = {1: "SCRAM-SHA-256", 2: "SCRAM-SHA-512"}
"""As they are numbered in the protocol."""
_NUMBERS: Final = {name: number for number, name in _MECHANISMS.items()}
_MOST_ITERATIONS: Final = 16384
_MOST: Final = 1000
"""Changes, or users asked for by name, of one request."""
_LONGEST_SALT: Final = 1024
_SIZES: Final = {"SCRAM-SHA-256": 32, "SCRAM-SHA-512": 64}
_LONGEST_NAME: Final = 1024


class DescribeUserScramCredentialsHandler(Handler):
    """Answers DescribeUserScramCredentials."""

    API: ClassVar[ApiKey] = ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.CONTROLLER
    ONLY_READS: ClassVar[bool] = True

    def __init__(self, access: Access, users: ScramUsers) -> None:
        self._access = access
        self._users = users

    def begin(
        self, request: DescribeUserScramCredentialsRequest, context: RequestContext
    ) -> DescribeUserScramCredentialsResponse:
        """Mechanisms and iterations of the users that are asked for, or of all."""
        self._access.check_cluster(context.connection, AclOperation.DESCRIBE)
        asked = [each.name for each in request.users or ()]
        if len(asked) > _MOST:
            raise InvalidRequestError(f"{len(asked)} users are asked for by name; ask for {_MOST} at a time, or all")
        times = Counter(asked)
        names = times if asked else sorted(self._users.users)
        return DescribeUserScramCredentialsResponse(results=[self._result(name, times[name]) for name in names])

    def _result(self, user: str, times: int) -> DescribeUserScramCredentialsResult:
        row = DescribeUserScramCredentialsResult(user=user, error_message="")  # as Kafka has it where all is well
        found = self._users.users.get(user)
        if times > 1:
            text = f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}"
            put_error(row, DuplicateResourceError(text), self.ROLE)
        elif found is None:
            text = f"Attempt to describe a user credential that does not exist: {user}"
            put_error(row, ResourceNotFoundError(text), self.ROLE)
        else:
            row.credential_infos = [
                CredentialInfo(mechanism=_NUMBERS[name], iterations=each.iterations)
                for name, each in sorted(found.items())
            ]
        return row


class AlterUserScramCredentialsHandler(Handler):
    """Answers AlterUserScramCredentials."""

    API: ClassVar[ApiKey] = ApiKey.ALTER_USER_SCRAM_CREDENTIALS
    VERSIONS: ClassVar[VersionRange] = (0, 0)
    ROLE: ClassVar[Role] = Role.CONTROLLER

    def __init__(self, access: Access, users: ScramUsers) -> None:
        self._access = access
        self._users = users

    def begin(self, request: AlterUserScramCredentialsRequest, context: RequestContext) -> Finish:
        """Changing waits for the manager."""
        self._access.check_cluster(context.connection, AclOperation.ALTER)
        number = _number(request)
        if number > _MOST:
            raise InvalidRequestError(f"{number} changes of credentials are more than one request may have: {_MOST}")
        return partial(self._finish, request)

    async def _finish(self, request: AlterUserScramCredentialsRequest) -> AlterUserScramCredentialsResponse:
        refused: dict[str, KafkaError] = {}
        changes: dict[str, ScramChange] = {}
        for each in _asked(request):
            user = each.name
            if user in refused:
                continue
            try:
                if changes.pop(user, None) is not None:
                    raise DuplicateResourceError("A user credential cannot be altered twice in the same request")
                changes[user] = _change(each)
            except KafkaError as error:
                refused[user] = error
        if changes:
            refused |= await self._users.alter(list(changes.values()))
        return AlterUserScramCredentialsResponse(
            results=[self._result(user, refused.get(user)) for user in {**changes, **refused}]
        )

    def _result(self, user: str, error: KafkaError | None) -> AlterUserScramCredentialsResult:
        row = AlterUserScramCredentialsResult(user=user, error_message=None)
        if error is not None:
            put_error(row, error, self.ROLE)
        return row

    def fail(
        self, request: AlterUserScramCredentialsRequest, context: RequestContext, error: KafkaError
    ) -> AlterUserScramCredentialsResponse:
        """The error for each user; for each change where there are more than one request may have."""
        if _number(request) > _MOST:
            changes: Iterable[ScramCredentialDeletion | ScramCredentialUpsertion]
            changes = chain(request.deletions, request.upsertions)
            rows = (self._result(each.name, error) for each in changes)
            return AlterUserScramCredentialsResponse(results=lazily(_number(request), rows))
        users = dict.fromkeys(each.name for each in _asked(request))
        return AlterUserScramCredentialsResponse(results=[self._result(user, error) for user in users])


def _number(request: AlterUserScramCredentialsRequest) -> int:
    return len(request.deletions) + len(request.upsertions)


def _asked(request: AlterUserScramCredentialsRequest) -> list[ScramCredentialDeletion | ScramCredentialUpsertion]:
    """All changes, in the order in which Kafka looks at them."""
    return [*request.deletions, *request.upsertions]


def _change(asked: ScramCredentialDeletion | ScramCredentialUpsertion) -> ScramChange:
    """What is to be done, checked."""
    if not asked.name:
        raise UnacceptableCredentialError("Username must not be empty")
    mechanism = _MECHANISMS.get(asked.mechanism)
    if mechanism is None:
        raise UnsupportedSaslMechanismError("Unknown SCRAM mechanism")
    if isinstance(asked, ScramCredentialDeletion):
        return ScramChange(asked.name, mechanism, None)
    if asked.iterations < MIN_ITERATIONS:
        raise UnacceptableCredentialError("Too few iterations")
    if asked.iterations > _MOST_ITERATIONS:
        raise UnacceptableCredentialError("Too many iterations")
    if len(asked.name) > _LONGEST_NAME or not asked.name.isprintable():
        raise UnacceptableCredentialError(
            f"the name of a user has {_LONGEST_NAME} characters at most, all of which can be printed"
        )
    if not 0 < len(asked.salt) <= _LONGEST_SALT:
        raise UnacceptableCredentialError(f"a salt has 1 to {_LONGEST_SALT} bytes")
    if len(asked.salted_password) != _SIZES[mechanism]:
        raise UnacceptableCredentialError(f"what is salted for {mechanism} has {_SIZES[mechanism]} bytes")
    credential = ScramCredential.of_salted(mechanism, asked.salted_password, asked.salt, asked.iterations)
    return ScramChange(asked.name, mechanism, credential)

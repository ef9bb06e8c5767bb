"""SCRAM credentials of users: which there are, adding, replacing and deleting them (KIP-554)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import anyio.to_thread

from kclient.admin.answers import failure
from kclient.admin.base import AdminBase, Outcome
from kclient.admin.types import raise_failures
from kclient.admin.user_types import (
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialAlteration,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
    as_alterations,
)
from kclient.arguments import as_names
from kclient.cluster import Trial
from kclient.errors import KafkaError, ResourceNotFoundError
from kclient.protocol.messages import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
    UserName,
)


class UserOperations(AdminBase):
    """The admin client's calls about users."""

    async def describe_user_scram_credentials(
        self, users: Collection[str] | None = None, *, timeout: float | None = None
    ) -> dict[str, list[ScramCredentialInfo]]:
        """The SCRAM credentials that users have, by name; never the passwords (KIP-554; Kafka 2.7).

        Args:
            users: whose; None for all.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            ResourceNotFoundError: a user has none.
            ClusterAuthorizationError: this user may not describe the cluster.
            UnsupportedVersionError: the brokers have none.
            PartialFailureError: several users have none.
            TypeError, ValueError: these are no names.
        """
        what = "Describing SCRAM credentials"
        names = None if users is None else list(dict.fromkeys(as_names(users, "users", empty=True)))
        if names is not None and not names:
            return {}
        # none are all, too: where null is asked for without the right to it, brokers fail to answer
        request = DescribeUserScramCredentialsRequest(users=[UserName(name=name) for name in names or ()])

        response = await self._answer_of_controller(
            lambda _: request, DescribeUserScramCredentialsResponse, timeout=timeout, what=what
        )
        rows = sorted(response.results, key=lambda row: row.user)
        errors = {row.user: failure(row.error_code, f"User {row.user}", row.error_message) for row in rows}
        described = {
            row.user: [
                ScramCredentialInfo(ScramMechanism.of(each.mechanism), each.iterations)
                for each in sorted(row.credential_infos, key=lambda each: each.mechanism)
            ]
            for row in rows
            if errors[row.user] is None
        }
        raise_failures(what, {user: error for user, error in errors.items() if error is not None}, described)
        return described

    async def alter_user_scram_credentials(
        self, alterations: Iterable[UserScramCredentialAlteration], *, timeout: float | None = None
    ) -> None:
        """Adds, replaces and deletes SCRAM credentials (KIP-554; Kafka 2.7).

        A user's go one after the other, since brokers take one of each user at a time: after one that is refused, the
        others of that user are not tried.

        Brokers learn of them a moment later.

        Args:
            alterations: `UserScramCredentialUpsertion`s and `UserScramCredentialDeletion`s.
            timeout: seconds; the default is `default.api.timeout.ms`.

        Raises:
            ResourceNotFoundError: a credential that is to go is not there.
            UnacceptableCredentialError: the brokers do not take one.
            ClusterAuthorizationError: this user may not alter the cluster.
            UnsupportedVersionError: the brokers have none.
            PartialFailureError: it was refused for several users; for the others it was done.
            TypeError, ValueError: these are no alterations, or two are about one credential.
        """
        wanted = as_alterations(alterations)
        what = "Altering SCRAM credentials"
        self._check()
        salted = await anyio.to_thread.run_sync(
            lambda: {
                (each.user, each.mechanism): each.salted()
                for alterations in wanted.values()
                for each in alterations
                if isinstance(each, UserScramCredentialUpsertion)
            }
        )

        async def ask(trial: Trial, left: Mapping[str, UserScramCredentialAlteration]) -> Mapping[str, Outcome]:
            request = AlterUserScramCredentialsRequest(
                deletions=[
                    ScramCredentialDeletion(name=each.user, mechanism=each.mechanism)
                    for each in left.values()
                    if isinstance(each, UserScramCredentialDeletion)
                ],
                upsertions=[
                    _upsertion(each, *salted[each.user, each.mechanism])
                    for each in left.values()
                    if isinstance(each, UserScramCredentialUpsertion)
                ],
            )
            response = await self._ask_controller(trial, lambda _: request, AlterUserScramCredentialsResponse, timeout)
            return {
                row.user: failure(row.error_code, f"User {row.user}", row.error_message) for row in response.results
            }

        failures: dict[str, KafkaError] = {}
        with self._steps(timeout, what) as left_time:
            while now := {user: each.pop(0) for user, each in wanted.items() if each and user not in failures}:
                failures |= await self._each(now, ask, timeout=left_time(), what=what, done=ResourceNotFoundError)
        raise_failures(what, failures)


def _upsertion(wanted: UserScramCredentialUpsertion, salt: bytes, salted_password: bytes) -> ScramCredentialUpsertion:
    return ScramCredentialUpsertion(
        name=wanted.user, mechanism=wanted.mechanism, iterations=wanted.iterations, salt=salt,
        salted_password=salted_password,
    )  # fmt: skip

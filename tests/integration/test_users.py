"""SCRAM credentials by the admin client and `kclient users`, on real Kafka: who has one can log in."""

from __future__ import annotations

import io
import json
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import anyio.to_thread
import pytest

import kclient
from kclient.admin import (
    Admin,
    PartialFailureError,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialDeletion,
    UserScramCredentialUpsertion,
)
from kclient.cli.app import run
from kclient.errors import (
    AuthenticationError,
    ErrorCode,
    KafkaTimeoutError,
    ResourceNotFoundError,
)
from kclient.protocol import messages as m
from tests.kafka_server import KafkaServer
from tests.wire_session import ON_EACH_SERVER, until, wire_session

pytestmark = pytest.mark.anyio

SHA256, SHA512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512


@pytest.fixture
async def admin(kafka: KafkaServer) -> AsyncIterator[Admin]:
    async with Admin(bootstrap_servers=kafka.bootstrap) as found:
        yield found


@pytest.fixture
def user() -> str:
    return f"a,b=c {uuid.uuid4().hex[:8]}"  # Kafka stores names beyond ASCII, and lets none of them in


async def can_log_in(kafka: KafkaServer, user: str, password: str, mechanism: ScramMechanism) -> bool:
    settings = {
        "bootstrap_servers": kafka.addresses["SASL"], "security_protocol": "SASL_PLAINTEXT",
        "sasl_mechanism": str(mechanism), "sasl_username": user, "sasl_password": password,
    }  # fmt: skip
    async with kclient.Admin(**settings) as client:
        try:
            await client.describe_cluster(timeout=10)
        except (AuthenticationError, KafkaTimeoutError):
            return False
    return True


@pytest.mark.kafka
async def test_who_has_a_credential_can_log_in(kafka: KafkaServer, admin: Admin, user: str) -> None:
    both = [
        UserScramCredentialUpsertion(user=user, mechanism=SHA256, password="Ⅸ wonder", iterations=8192),
        UserScramCredentialUpsertion(user=user, mechanism=SHA512, password="other", salt=b"salt" * 6),
    ]
    await admin.alter_user_scram_credentials(both)
    expected = [ScramCredentialInfo(SHA256, 8192), ScramCredentialInfo(SHA512, 4096)]
    found = await until(lambda: admin.describe_user_scram_credentials(), lambda found: user in found)
    assert found[user] == expected
    assert await admin.describe_user_scram_credentials([user]) == {user: expected}
    assert await until(lambda: can_log_in(kafka, user, "Ⅸ wonder", SHA256), bool)
    assert await can_log_in(kafka, user, "other", SHA512)
    assert not await can_log_in(kafka, user, "other", SHA256)
    await admin.alter_user_scram_credentials(
        [
            UserScramCredentialDeletion(user=user, mechanism=SHA256),
            UserScramCredentialUpsertion(user=user, mechanism=SHA512, password="newer"),
        ]
    )
    await until(lambda: can_log_in(kafka, user, "newer", SHA512), bool)
    assert not await can_log_in(kafka, user, "other", SHA512)
    assert not await can_log_in(kafka, user, "Ⅸ wonder", SHA256)
    await admin.alter_user_scram_credentials([UserScramCredentialDeletion(user=user, mechanism=SHA512)])
    await until(lambda: admin.describe_user_scram_credentials(), lambda found: user not in found)


@pytest.mark.kafka
async def test_who_is_refused_does_not_keep_the_others(admin: Admin, user: str) -> None:
    with pytest.raises(ResourceNotFoundError, match=f"User {user}-gone"):
        await admin.alter_user_scram_credentials(
            [
                UserScramCredentialDeletion(user=f"{user}-gone", mechanism=SHA256),
                UserScramCredentialUpsertion(user=user, mechanism=SHA256, password="p"),
            ]
        )
    await until(lambda: admin.describe_user_scram_credentials(), lambda found: user in found)
    with pytest.raises(PartialFailureError) as failed:
        await admin.describe_user_scram_credentials(["nobody", user, "no one"])
    assert set(failed.value.failures) == {"nobody", "no one"}
    await admin.alter_user_scram_credentials([UserScramCredentialDeletion(user=user, mechanism=SHA256)])


@pytest.mark.kafka
async def test_a_user_who_is_asked_for_twice(admin: Admin, user: str) -> None:
    await admin.alter_user_scram_credentials([UserScramCredentialUpsertion(user=user, mechanism=SHA256, password="p")])
    await until(lambda: admin.describe_user_scram_credentials(), lambda found: user in found)
    expected = {user: [ScramCredentialInfo(SHA256, 4096)]}
    assert await admin.describe_user_scram_credentials([user, user]) == expected
    await admin.alter_user_scram_credentials([UserScramCredentialDeletion(user=user, mechanism=SHA256)])


def upsertion(name: str, mechanism: int = 1, iterations: int = 4096) -> m.ScramCredentialUpsertion:
    return m.ScramCredentialUpsertion(
        name=name, mechanism=mechanism, iterations=iterations, salt=b"salt" * 6, salted_password=bytes(32)
    )


@ON_EACH_SERVER
async def test_every_server_refuses_the_same(server: tuple[str, str]) -> None:
    user = f"refused-{uuid.uuid4().hex[:8]}"
    there = m.ScramCredentialDeletion(name=f"{user}-there", mechanism=1)
    async with wire_session(server[1]) as session:
        made = await session(m.AlterUserScramCredentialsRequest(upsertions=[upsertion(there.name)]))
        assert [each.error_code for each in made.results] == [0]
        asked = m.DescribeUserScramCredentialsRequest(users=[m.UserName(name=there.name)])
        await until(lambda: session(asked), lambda answer: answer.results[0].error_code == 0)
        answer = await session(
            m.AlterUserScramCredentialsRequest(
                deletions=[
                    m.ScramCredentialDeletion(name=f"{user}-gone", mechanism=1),
                    m.ScramCredentialDeletion(name=there.name, mechanism=2),
                    m.ScramCredentialDeletion(name=f"{user}-strange", mechanism=3),
                ],
                upsertions=[
                    upsertion(f"{user}-few", iterations=4095), upsertion(f"{user}-many", iterations=16385),
                    upsertion(f"{user}-unknown", 0), upsertion(""), upsertion(f"{user}-twice"),
                    upsertion(f"{user}-twice", 2), upsertion(f"{user}-twice"), upsertion(f"{user}-good"),
                ],
            )
        )  # fmt: skip
        codes = {each.user.removeprefix(user): (each.error_code, each.error_message) for each in answer.results}
        assert codes == {
            "-gone": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
            "-there": (ErrorCode.RESOURCE_NOT_FOUND, "Attempt to delete a user credential that does not exist"),
            "-strange": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
            "-few": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too few iterations"),
            "-many": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Too many iterations"),
            "-unknown": (ErrorCode.UNSUPPORTED_SASL_MECHANISM, "Unknown SCRAM mechanism"),
            "": (ErrorCode.UNACCEPTABLE_CREDENTIAL, "Username must not be empty"),
            "-twice": (
                ErrorCode.DUPLICATE_RESOURCE, "A user credential cannot be altered twice in the same request"
            ),
            "-good": (0, None),
        }  # fmt: skip
        users = [m.UserName(name=name) for name in (f"{user}-gone", f"{user}-good", there.name, there.name)]
        request = m.DescribeUserScramCredentialsRequest(users=users)

        def told(answer: Any) -> dict[str, tuple[int, str | None]]:
            return {each.user.removeprefix(user): (each.error_code, each.error_message) for each in answer.results}

        found = await until(lambda: session(request), lambda answer: told(answer)["-good"][0] == 0)
        assert told(found) == {
            "-gone": (
                ErrorCode.RESOURCE_NOT_FOUND,
                f"Attempt to describe a user credential that does not exist: {user}-gone",
            ),
            "-good": (0, ""),
            "-there": (
                ErrorCode.DUPLICATE_RESOURCE,
                f"Cannot describe SCRAM credentials for the same user twice in a single request: {user}-there",
            ),
        }


@pytest.mark.kafka
async def test_the_command(
    kafka: KafkaServer, admin: Admin, user: str, tmp_path: Path, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    async def users(*arguments: str) -> int:
        return await anyio.to_thread.run_sync(run, ["users", *arguments, "--bootstrap", kafka.bootstrap])

    (tmp_path / "password").write_text("\ufefffrom a file\r\nand no more", "utf-8")  # as PowerShell writes it
    assert await users("set", user, "--password-file", str(tmp_path / "password"), "--mechanism", "scram-sha-256") == 0
    monkeypatch.setattr("sys.stdin", io.StringIO("piped in\n"))
    assert await users("set", user, "--iterations", "5000") == 0
    await until(lambda: admin.describe_user_scram_credentials(), lambda found: len(found.get(user, ())) == 2)
    assert await until(lambda: can_log_in(kafka, user, "from a file", SHA256), bool)
    assert await until(lambda: can_log_in(kafka, user, "piped in", SHA512), bool)
    capsys.readouterr()
    assert await users("list", user, "--output", "json") == 0
    assert json.loads(capsys.readouterr().out)["users"] == [
        {"user": user, "mechanism": "SCRAM-SHA-256", "iterations": 4096},
        {"user": user, "mechanism": "SCRAM-SHA-512", "iterations": 5000},
    ]
    assert await users("remove", user) == 0
    await until(lambda: admin.describe_user_scram_credentials(), lambda found: user not in found)
    assert await users("remove", user) == 1
    assert user in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["set", "a", "--mechanism", "PLAIN"], "--mechanism is SCRAM-SHA-256 or SCRAM-SHA-512"),
        (["set", "a", "--iterations", "100"], "4096 to 16384"),
        (["set", "a", "--password-file", "/no/such/file"], "cannot be read from"),
        (["set", ""], "the name of a user is not empty"),
    ],
)
async def test_what_cannot_be_is_told(
    arguments: list[str], told: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("password\n"))
    assert run(["users", *arguments, "--bootstrap", "127.0.0.1:1"]) == 2
    printed = capsys.readouterr().err
    assert told in printed
    assert "password\n" not in printed


def test_a_password_is_shown_nowhere() -> None:
    one = UserScramCredentialUpsertion(user="a", mechanism=SHA512, password="hidden words", salt=b"hidden salt")
    assert "hidden" not in repr(one)
    with pytest.raises(ValueError, match="empty"):
        UserScramCredentialUpsertion(user="a", mechanism=SHA512, password="")

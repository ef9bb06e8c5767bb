"""`kclient users`: the SCRAM credentials of users, listed, set and removed."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from getpass import getpass
from pathlib import Path

from kclient.admin import ScramMechanism, UserScramCredentialDeletion, UserScramCredentialUpsertion
from kclient.cli import output
from kclient.cli.errors import UsageError
from kclient.cli.sheets import Sheet, sheet_of
from kclient.config.secret import Secret
from kclient.sync import Admin

_MECHANISMS = {str(each): each for each in ScramMechanism if each}


def mechanisms_of(names: Sequence[str]) -> list[ScramMechanism]:
    """Mechanisms as options name them.

    Raises:
        UsageError: There is no such.
    """
    for name in names:
        if name.upper() not in _MECHANISMS:
            raise UsageError(f"--mechanism is {' or '.join(_MECHANISMS)}, not {name!r}")
    return list(dict.fromkeys(_MECHANISMS[name.upper()] for name in names))


def listed(admin: Admin, users: Sequence[str]) -> Sheet:
    """Users and what they can log in with."""
    found = admin.describe_user_scram_credentials(users or None)
    rows = [
        {"user": user, "mechanism": str(each.mechanism), "iterations": each.iterations}
        for user, credentials in found.items()
        for each in credentials
    ]
    return sheet_of(f"{len(found)} users", ["user", "mechanism", "iterations"], rows, "users")


def password_from(file: Path | None) -> Secret:
    """A new password: from a file, or what is piped in, or asked for twice on a terminal. Its first line.

    Raises:
        UsageError: There is none, or the second differs from the first.
    """
    if file is not None:
        try:
            text = file.read_text("utf-8-sig")  # editors and shells of Windows begin a text so
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the password cannot be read from {file}: {error}") from None
    elif sys.stdin.isatty():
        text = getpass("New password: ")
        if getpass("Again: ") != text:
            raise UsageError("these are two passwords: nothing was changed")
    else:
        text = sys.stdin.readline()
    text = text.partition("\n")[0].removesuffix("\r")
    if not text:
        raise UsageError("the password is empty: nothing was changed")
    return Secret(text)


def put(
    user: str, mechanisms: Sequence[ScramMechanism], settings: dict[str, object], *, file: Path | None, iterations: int
) -> int:
    """Give a user a password."""
    password = password_from(file)
    try:
        alterations = [
            UserScramCredentialUpsertion(user=user, mechanism=each, password=password, iterations=iterations)
            for each in mechanisms
        ]
    except ValueError as error:
        raise UsageError(str(error)) from None
    with Admin(settings) as admin:
        admin.alter_user_scram_credentials(alterations)
    output.note(f"{user} can log in by {' and '.join(map(str, mechanisms))}")
    return 0


def remove(user: str, mechanisms: Sequence[ScramMechanism], settings: dict[str, object]) -> int:
    """Take credentials away from a user."""
    with Admin(settings) as admin:
        gone = mechanisms or [each.mechanism for each in admin.describe_user_scram_credentials([user])[user]]
        admin.alter_user_scram_credentials([UserScramCredentialDeletion(user=user, mechanism=each) for each in gone])
    output.note(f"{user} cannot log in by {' or '.join(map(str, gone))} any more")
    return 0

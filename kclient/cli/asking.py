"""The clients that commands ask a cluster with: their settings, and what is told while they wait for it."""

from __future__ import annotations

import logging
from collections.abc import Collection
from contextlib import ExitStack

from kclient.cli.errors import check_terminated
from kclient.cli.settings import client_settings, with_patience

at_the_end: ExitStack = ExitStack()
"""What a command leaves behind is undone here."""


def client_of(
    bootstrap: str, config: list[str] | None, *, creates: bool = False, refused: Collection[str] = ()
) -> dict[str, object]:
    """The settings of a producer or consumer; see `client_settings`."""
    check_terminated()  # the command is loaded
    # what a client logs it also raises, and then it is said in one sentence
    logging.getLogger("kclient").addHandler(logging.NullHandler())
    return client_settings(bootstrap, config, creates=creates, refused=refused)


def admin_of(bootstrap: str, config: list[str] | None, *, creates: bool = False) -> dict[str, object]:
    """The settings of an admin client; who looks on while it tries to reach the broker sees why it takes so long."""
    settings, patience = with_patience(client_of(bootstrap, config, creates=creates))
    from kclient.cli import output
    from kclient.cli.trouble import told, trying_for

    at_the_end.enter_context(told(output.note, going_on=trying_for(patience)))
    return settings

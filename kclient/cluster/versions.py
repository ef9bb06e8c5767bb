"""Which version of a request to use on a connection."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kclient.errors import UnsupportedVersionError
from kclient.protocol.registry import negotiate

if TYPE_CHECKING:
    from kclient.net.connection import Connection
    from kclient.protocol.message import ApiMessage


def version_for(connection: Connection, request: type[ApiMessage], max_version: int | None = None) -> int:
    """The version of a request to use on a connection.

    Raises:
        UnsupportedVersionError: There is none that both sides speak.
    """
    assert request.API_KEY is not None
    low, high = request.VERSIONS
    ours = (low, high if max_version is None else min(high, max_version))
    try:
        return negotiate(request.API_KEY, connection.api_versions, ours)
    except UnsupportedVersionError as error:
        raise UnsupportedVersionError(f"{connection.address}: {error.message}") from error

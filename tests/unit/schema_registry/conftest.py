"""A registry over HTTP, and a client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kclient.schema_registry import SchemaRegistry
from tests.registry_server import RegistryServer, serving_registry


@pytest.fixture
def server() -> Iterator[RegistryServer]:
    with serving_registry() as server:
        yield server


@pytest.fixture
def registry(server: RegistryServer) -> Iterator[SchemaRegistry]:
    with SchemaRegistry(server.url) as registry:
        yield registry

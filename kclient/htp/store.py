"""Open a store by its URL: backends register under the entry-point group `kclient.htp`."""

from __future__ import annotations

import importlib
import inspect
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, cast

from kclient.arguments import shown
from kclient.errors import ConfigError, NotYetSupportedError

if TYPE_CHECKING:
    from collections.abc import Callable

    from kclient.htp.port import Store

ENTRY_POINTS = "kclient.htp"
"""The entry-point group: name = URL scheme, value = a function `(rest_of_the_url, **options) -> Store`."""

_BUILT_IN = {
    "memory": "kclient.htp.memory:open_memory",
    "embedded": "kclient.htp.embedded:open_embedded",
    "simulated": "kclient.htp.testing:open_simulated",
}
_LATER = {
    "http": "mgr and brk nodes over HTTP",
    "https": "mgr and brk nodes over HTTP",
    "cloud": "object storage and PostgreSQL",
}


def open_store(url: str, **options: Any) -> Store:
    """The store that a URL names; `async with` opens it.

    Args:
        url: `memory:NAME` (shared by all in the process that use the name, until it is reset),
            `embedded:DIRECTORY` (files and SQLite), `simulated:NAME` (for tests: `kclient.htp.testing`), or the scheme
            of an installed backend. `?brokers=N` at the end of these says how many brokers there are to be; without it
            as many as before, at first one. `embedded:` takes `?min_free_bytes=NUMBER`, too, alone or with `&` between
            the two.
        options: Passed to the backend; `durability="synced"` or `"written"` is known to all, `brokers=N` to these
            three, and `faults=True`, for tests, to those that can be made to fail (`kclient.htp.port.faults_of`).

    Raises:
        ConfigError: If nothing is known of the scheme, or an option is not known to the backend.
        NotYetSupportedError: If the scheme is planned but not there yet.
    """
    given: object = url
    scheme, colon, rest = url.partition(":") if isinstance(given, str) else ("", "", "")
    if not colon:
        raise ConfigError(f"{shown(url)} is not a store: say memory:NAME or embedded:DIRECTORY")
    opener = _opener(scheme)
    try:
        inspect.signature(opener).bind(rest, **options)
    except TypeError as error:
        raise ConfigError(f"{scheme}: stores take no such options: {error}") from error
    return cast("Store", opener(rest, **options))


def _opener(scheme: str) -> Callable[..., object]:
    # the built-in ones first: they work from a source tree that was never installed, too
    if scheme in _BUILT_IN:
        module, _, function = _BUILT_IN[scheme].partition(":")
        return cast("Callable[..., object]", getattr(importlib.import_module(module), function))
    for entry in entry_points(group=ENTRY_POINTS, name=scheme):
        return cast("Callable[..., object]", entry.load())
    if scheme in _LATER:
        raise NotYetSupportedError(f"{scheme}: stores ({_LATER[scheme]}) are not there yet; use embedded:DIRECTORY")
    known = sorted({*_BUILT_IN, *(entry.name for entry in entry_points(group=ENTRY_POINTS))})
    raise ConfigError(f"No HTP backend for {shown(scheme)}; there are {', '.join(known)}")

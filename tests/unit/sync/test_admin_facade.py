"""The blocking admin client has the calls of the asynchronous one, argument by argument."""

import inspect

from kclient import Admin
from kclient.sync import Admin as SyncAdmin
from tests.unit.sync.calls import public


def test_the_same_calls_with_the_same_arguments() -> None:
    blocking, asynchronous = public(SyncAdmin), public(Admin)
    assert blocking.keys() == asynchronous.keys()
    for name, signature in asynchronous.items():
        assert blocking[name] == signature, name


def test_every_call_is_documented() -> None:
    for name, member in inspect.getmembers(SyncAdmin, inspect.isfunction):
        assert name.startswith("_") or member.__doc__, name

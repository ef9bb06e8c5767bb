"""Exceptions: one class per Kafka error code, flags, texts."""

from __future__ import annotations

import pickle

import pytest

import kclient.errors
from kclient.errors import (
    BrokerConnectionError,
    CorruptRecordError,
    ErrorCode,
    KafkaError,
    MissingExtraError,
    NotLeaderOrFollowerError,
    RequestTimedOutError,
    UnknownKafkaCodeError,
    error_class,
    error_for,
)

CODES = [code for code in ErrorCode if code != ErrorCode.NONE]
CLASSES = [
    found for found in vars(kclient.errors).values() if isinstance(found, type) and issubclass(found, KafkaError)
]


@pytest.mark.parametrize("code", CODES, ids=lambda code: code.name)
def test_every_code_has_a_class(code: ErrorCode) -> None:
    error = error_for(code)
    assert type(error) is error_class(code)
    assert type(error) is not UnknownKafkaCodeError
    assert error.code == code
    assert error.code_name == code.name
    assert str(error).endswith(f"[{code.name}]")
    assert len(error.message) > 15


def test_the_brokers_message_is_kept() -> None:
    assert str(error_for(6, "moved to 3")) == "moved to 3 [NOT_LEADER_OR_FOLLOWER]"


def test_an_unknown_code_keeps_its_number() -> None:
    error = error_for(4711)
    assert isinstance(error, UnknownKafkaCodeError)
    assert error.code == 4711
    assert "4711" in str(error)
    assert not error.retriable


def test_success_is_no_error() -> None:
    with pytest.raises(ValueError, match="success"):
        error_for(0)


def test_flags() -> None:
    moved = NotLeaderOrFollowerError()
    assert (moved.retriable, moved.refresh_metadata, moved.fatal) == (True, True, False)
    assert KafkaError("x", retriable=True, fatal=True).retriable
    assert KafkaError("x", fatal=True).fatal
    assert not KafkaError().retriable
    for code in CODES:
        error = error_for(code)
        assert not (error.fatal and error.retriable)
        assert error.retriable or not error.refresh_metadata


def test_python_families() -> None:
    assert isinstance(RequestTimedOutError(), TimeoutError)
    assert isinstance(BrokerConnectionError(), ConnectionError)
    assert isinstance(MissingExtraError("pyarrow", "arrow"), ImportError)


def test_every_address_is_named() -> None:
    error = BrokerConnectionError("nobody answers", attempts=[("a:1", TimeoutError()), ("b:2", OSError("refused"))])
    assert str(error) == "nobody answers (tried a:1: TimeoutError; b:2: refused)"


def test_a_missing_extra_names_the_command() -> None:
    assert "pip install 'htp-kclient[arrow]'" in str(MissingExtraError("pyarrow", "arrow", "poll_arrow"))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_errors_can_be_pickled(cls: type[KafkaError]) -> None:
    error = cls("one", "two") if cls is MissingExtraError else cls("one")  # type: ignore[call-arg,arg-type]
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is cls
    assert str(again) == str(error)
    assert vars(again) == vars(error)


def test_details_survive_pickling() -> None:
    error = pickle.loads(pickle.dumps(CorruptRecordError("bad", topic="t", partition=1, offset=5, position=9)))
    assert (error.topic, error.partition, error.offset, error.position) == ("t", 1, 5, 9)


def test_attempts_made_of_attempts_are_told_once() -> None:
    refused = OSError(111, "refused")
    inner = BrokerConnectionError("no connection to a:1", attempts=[("10.0.0.1:1", refused), ("10.0.0.2:1", refused)])
    outer = BrokerConnectionError("Nobody answered", attempts=[("a:1", inner), ("b:1", OSError(5, "broken"))])
    assert [address for address, _ in outer.attempts] == ["10.0.0.1:1", "10.0.0.2:1", "b:1"]
    assert "no connection" not in str(outer)

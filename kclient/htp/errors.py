"""What can go wrong between the gateway and a store of messages, in HTP's own terms."""

from __future__ import annotations

from kclient.errors import ConfigError, IllegalStateError, KafkaError

__all__ = [
    "BindingError",
    "ConflictError",
    "DamagedError",
    "DomainExistsError",
    "FencedError",
    "FormatVersionError",
    "FramingMismatchError",
    "HtpError",
    "LeaseHeldError",
    "LockedError",
    "OrderError",
    "OutcomeUnknownError",
    "PositionError",
    "StorageError",
    "StorageFullError",
    "StoreClosedError",
    "TokenTooOldError",
    "TooFewBrokersError",
    "TopicExistsError",
    "UnknownDomainError",
    "UnknownFramingError",
    "UnknownTopicError",
]


class HtpError(KafkaError):
    """Something that was asked of HTP could not be done."""


class StorageError(HtpError):
    """The store could not keep or read messages; what was not reported as synced is gone."""

    retriable = True


class DamagedError(StorageError):
    """What is stored at a position are no messages any more. What follows may be readable."""

    retriable = False


class StorageFullError(StorageError):
    """There is no space left; appends go on by themselves once space has been made."""


class OutcomeUnknownError(HtpError):
    """Whether messages that were sent are stored is not known: an answer was lost, or did not come in time.

    They may be stored, and may still become stored until the topic is opened under a newer epoch. It is no
    `StorageError`, which says that they are not, and trying again may store them twice. Whoever sent them opens the
    topic under a newer epoch and reads to the end: what is there then is stored, and what is not there never will be
    (capability `fenced_sends`; without it, its reader has to know that it comes too late).
    """


class LockedError(HtpError):
    """Another process owns the data directory.

    Args:
        message: What is locked, and by whom.
        owner: Process id of the owner, if it could be read.
        opening: Whether the owner is about to share it with others.
    """

    def __init__(self, message: str | None = None, *, owner: int | None = None, opening: bool = False) -> None:
        super().__init__(message)
        self.owner = owner
        self.opening = opening


class FormatVersionError(HtpError, ConfigError):
    """The data directory was written in a format that this version of kclient does not know."""


class StoreClosedError(HtpError, IllegalStateError):
    """The store was closed, or is closing."""


class TooFewBrokersError(HtpError, ConfigError):
    """A store was to be opened with fewer brokers than hold its topics.

    Args:
        message: Which are missing.
        needed: With so many it can be opened.
    """

    def __init__(self, message: str | None = None, *, needed: int) -> None:
        super().__init__(message)
        self.needed = needed


class BindingError(HtpError):
    """A topic cannot be bound to a broker: there is no such broker, or the topic was made without any."""


class UnknownDomainError(HtpError):
    """There is no such domain."""


class DomainExistsError(HtpError):
    """There is a domain of that name already."""


class UnknownTopicError(HtpError):
    """There is no such topic, or it was not opened at this broker."""


class TopicExistsError(HtpError):
    """There is a topic of that name already."""


class UnknownFramingError(HtpError):
    """No framing is registered by this name, or what is registered cannot be used."""


class FramingMismatchError(HtpError):
    """A topic was opened with another framing than its messages were written with: they would be taken for damage.

    Args:
        message: Which topic.
        written: Name of the framing that its messages were written with.
        given: Name of the one that it was opened with.
    """

    def __init__(self, message: str | None = None, *, written: str, given: str) -> None:
        super().__init__(message)
        self.written = written
        self.given = given


class OrderError(HtpError):
    """A message does not follow on what the topic holds: its first ordinal is below the next one."""


class PositionError(HtpError):
    """A position lies before the first or after the last message of a topic.

    Args:
        message: What was asked for.
        start: The first position that can be read.
        end: The position after the last message.
    """

    def __init__(self, message: str | None = None, *, start: int, end: int) -> None:
        super().__init__(message)
        self.start = start
        self.end = end


class ConflictError(HtpError):
    """A value was changed by somebody else since it was read: nothing was written.

    Args:
        key: The key whose version is another than the expected one.
        expected: The version that the caller expected; 0 for an absent key.
        found: The version that the key has; 0 if it is absent.
    """

    def __init__(self, key: str, expected: int, found: int) -> None:
        super().__init__(f"{key!r} has version {found}, not {expected}: somebody else has written it")
        self.args: tuple[str, int, int] = (key, expected, found)  # what pickle calls the class with
        self.key = key
        self.expected = expected
        self.found = found


class TokenTooOldError(HtpError):
    """What has changed since a token was given is not known any more: take a new one and scan again."""


class LeaseHeldError(HtpError):
    """Somebody else holds the lease, and is not known to have died.

    Args:
        message: Which lease.
        holder: Who holds it.
        process: The process id of another process that is there and holds it, 0 if it cannot be read; None if it is not
            known to be another's.
    """

    def __init__(self, message: str | None = None, *, holder: str, process: int | None = None) -> None:
        super().__init__(message)
        self.holder = holder
        self.process = process


class FencedError(HtpError):
    """A newer epoch exists: whoever asked is no longer in charge and must not write any more.

    Args:
        message: What was refused.
        epoch: The newer epoch, if it is known.
    """

    fatal = True

    def __init__(self, message: str | None = None, *, epoch: int | None = None) -> None:
        super().__init__(message)
        self.epoch = epoch

"""Compiled codecs: Python source written for one version of one message and executed when first needed.

For every (message class, version) the schema says exactly which fields follow each other. From that `_encoder` and
`_decoder` write straight-line functions with nested structs as loops in them: runs of fixed-width fields are one
`struct` call, arrays of numbers another, and nothing is looked up while they run. `source_of` shows what they wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from functools import partial
from typing import Any, TypeAlias, cast

from kclient.protocol._decoder import decoder_source
from kclient.protocol._encoder import encoder_source
from kclient.protocol._source import Source
from kclient.protocol.errors import no_field
from kclient.protocol.schema import UNSET, ArrayType, Declaration, StructType
from kclient.types import Buffer

Encoder: TypeAlias = Callable[[Any, bytearray, list[Buffer]], bytearray]
"""Appends a message to the buffer and gives the buffer that is open at the end (see `encode_into`)."""
Decoder: TypeAlias = Callable[[Buffer, int], tuple[Any, int]]
"""Reads a message at a position; gives it and the position behind it."""
EncoderSteps: TypeAlias = Callable[[Any, bytearray, list[Buffer]], Generator[int, None, bytearray]]
"""As `Encoder`, pausing now and then; yields how many bytes were written since the last pause."""
DecoderSteps: TypeAlias = Callable[[Buffer, int], Generator[int, None, tuple[Any, int]]]
"""As `Decoder`, pausing now and then; yields how many bytes of memory were taken since the last pause, about."""


def compile_encoder(message: type[Declaration], version: int) -> Encoder:
    """The function that encodes one version of a message."""
    return cast("Encoder", _execute(encoder_source(message, version)))


def compile_decoder(message: type[Declaration], version: int) -> Decoder:
    """The function that decodes one version of a message."""
    return cast("Decoder", _execute(decoder_source(message, version)))


def compile_encoder_steps(message: type[Declaration], version: int) -> EncoderSteps:
    """The generator that encodes one version of a message in steps."""
    return cast("EncoderSteps", _execute(encoder_source(message, version, in_steps=True)))


def compile_decoder_steps(message: type[Declaration], version: int) -> DecoderSteps:
    """The generator that decodes one version of a message in steps."""
    return cast("DecoderSteps", _execute(decoder_source(message, version, in_steps=True)))


def compile_init(message: type[Declaration]) -> Callable[..., None]:
    """The constructor of a message class: keyword arguments with the declared defaults."""
    source = Source("__init__", f"<{message.__name__} constructor>")
    source.constants["unknown_field"] = partial(_unknown_field, message)
    arguments, body = [], []
    for item in message.FIELDS:
        fresh = item.default is UNSET and isinstance(item.type, ArrayType | StructType)
        default = source.constant("UNSET" if fresh else f"default_{item.name}", UNSET if fresh else item.new_default())
        arguments.append(f"{item.name}={default}")
        value = item.name
        if fresh:
            empty = "[]"
            if isinstance(item.type, StructType):
                empty = source.constant(item.type.message.__name__, item.type.message) + "()"
            value = f"{empty} if {item.name} is UNSET else {item.name}"
        body.append(f"self.{item.name} = {value}")
    arguments = ["self", *(["*"] if arguments else []), *arguments, "**wrong"]
    source.line(f"def __init__({', '.join(arguments)}):")
    with source.indented():
        for line in ["if wrong: raise unknown_field(wrong)", *body, "self._unknown = None"]:
            source.line(line)
    init = cast("Callable[..., None]", _execute(source))
    init.__qualname__ = f"{message.__qualname__}.__init__"  # which Python's own errors show
    return init


def _unknown_field(message: type[Declaration], wrong: dict[str, Any]) -> TypeError:
    """The error for arguments of a constructor that are not fields."""
    return TypeError(f"{message.__name__}: {no_field(next(iter(wrong)), (item.name for item in message.FIELDS))}")


def source_of(message: type[Declaration], version: int) -> str:
    """The source of the compiled encoder and decoder of one version, to look at."""
    return f"{encoder_source(message, version).text()}\n{decoder_source(message, version).text()}"


def _execute(source: Source) -> Any:
    code = compile(source.text(), source.title, "exec")
    exec(code, source.constants)  # noqa: S102  (source from our own declarations)
    return source.constants[source.name]

"""Serializers and deserializers: keys and values to bytes and back, as Java's do it.

A serializer is an object with `serialize(topic, value, headers)`, a deserializer one with
`deserialize(topic, data, headers)`; `None` (a null key, a tombstone) passes both unchanged unless they say otherwise.
Settings name them by instance, class, function, short name or Java class, see `resolve_serializer`.
"""

from kclient.serialization.interfaces import Deserializer as Deserializer
from kclient.serialization.interfaces import Serializer as Serializer
from kclient.serialization.json import JsonDeserializer as JsonDeserializer
from kclient.serialization.json import JsonSerializer as JsonSerializer
from kclient.serialization.primitives import BooleanDeserializer as BooleanDeserializer
from kclient.serialization.primitives import BooleanSerializer as BooleanSerializer
from kclient.serialization.primitives import BytesDeserializer as BytesDeserializer
from kclient.serialization.primitives import BytesSerializer as BytesSerializer
from kclient.serialization.primitives import DoubleDeserializer as DoubleDeserializer
from kclient.serialization.primitives import DoubleSerializer as DoubleSerializer
from kclient.serialization.primitives import FloatDeserializer as FloatDeserializer
from kclient.serialization.primitives import FloatSerializer as FloatSerializer
from kclient.serialization.primitives import IntegerDeserializer as IntegerDeserializer
from kclient.serialization.primitives import IntegerSerializer as IntegerSerializer
from kclient.serialization.primitives import LongDeserializer as LongDeserializer
from kclient.serialization.primitives import LongSerializer as LongSerializer
from kclient.serialization.primitives import ShortDeserializer as ShortDeserializer
from kclient.serialization.primitives import ShortSerializer as ShortSerializer
from kclient.serialization.primitives import StringDeserializer as StringDeserializer
from kclient.serialization.primitives import StringSerializer as StringSerializer
from kclient.serialization.primitives import UUIDDeserializer as UUIDDeserializer
from kclient.serialization.primitives import UUIDSerializer as UUIDSerializer
from kclient.serialization.primitives import VoidDeserializer as VoidDeserializer
from kclient.serialization.primitives import VoidSerializer as VoidSerializer
from kclient.serialization.resolve import resolve_deserializer as resolve_deserializer
from kclient.serialization.resolve import resolve_serializer as resolve_serializer

__all__ = [
    "BooleanDeserializer",
    "BooleanSerializer",
    "BytesDeserializer",
    "BytesSerializer",
    "Deserializer",
    "DoubleDeserializer",
    "DoubleSerializer",
    "FloatDeserializer",
    "FloatSerializer",
    "IntegerDeserializer",
    "IntegerSerializer",
    "JsonDeserializer",
    "JsonSerializer",
    "LongDeserializer",
    "LongSerializer",
    "Serializer",
    "ShortDeserializer",
    "ShortSerializer",
    "StringDeserializer",
    "StringSerializer",
    "UUIDDeserializer",
    "UUIDSerializer",
    "VoidDeserializer",
    "VoidSerializer",
    "resolve_deserializer",
    "resolve_serializer",
]

"""Java's class names in pasted properties, and what they are called here."""

from __future__ import annotations

__all__ = ["ASSIGNORS", "DESERIALIZERS", "PARTITIONERS", "SERIALIZERS"]

_KINDS = {
    "ByteArray": "bytes",
    "ByteBuffer": "bytes",
    "Bytes": "bytes",
    "String": "string",
    "Integer": "integer",
    "Long": "long",
    "Short": "short",
    "Double": "double",
    "Float": "float",
    "UUID": "uuid",
    "Boolean": "boolean",
    "Void": "void",
}

SERIALIZERS = {f"org.apache.kafka.common.serialization.{kind}Serializer": name for kind, name in _KINDS.items()} | {
    "org.springframework.kafka.support.serializer.JsonSerializer": "json",
    "json": "json",
}
"""Names of the built-in serializers by Java class."""

DESERIALIZERS = {f"org.apache.kafka.common.serialization.{kind}Deserializer": name for kind, name in _KINDS.items()} | {
    "org.springframework.kafka.support.serializer.JsonDeserializer": "json",
    "json": "json",
}
"""Names of the built-in deserializers by Java class."""

PARTITIONERS = {
    "org.apache.kafka.clients.producer.RoundRobinPartitioner": "roundrobin",
    "org.apache.kafka.clients.producer.internals.DefaultPartitioner": "default",
} | {
    name: name
    for name in ("consistent", "consistent_random", "fnv1a", "fnv1a_random", "murmur2", "murmur2_random", "random")
}
"""Names of the built-in partitioners by Java class, or by the name that librdkafka has for them.

`default`, which is also `murmur2_random`, is what there is without a setting (KIP-794).
"""

ASSIGNORS = {
    "org.apache.kafka.clients.consumer.RangeAssignor": "range",
    "org.apache.kafka.clients.consumer.RoundRobinAssignor": "roundrobin",
    "org.apache.kafka.clients.consumer.StickyAssignor": "sticky",
    "org.apache.kafka.clients.consumer.CooperativeStickyAssignor": "cooperative-sticky",
}
"""Names of the built-in assignors, as members announce them, by Java class."""

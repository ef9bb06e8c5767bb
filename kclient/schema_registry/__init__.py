"""Schemas from a registry, and values that name theirs by its id.

The registry is asked as Confluent's is (Karapace and Apicurio answer the same way). `SchemaRegistry` asks it;
`framing` takes the id off a value; `avro`, `json_values` and `protobuf` make Python values of the rest, and tell which
Arrow type they have. Each needs its library: the extra `schema-registry` brings them.
"""

from kclient.schema_registry.client import SchemaRegistry as SchemaRegistry
from kclient.schema_registry.schema import RegisteredSchema as RegisteredSchema
from kclient.schema_registry.schema import SchemaReference as SchemaReference

__all__ = ["RegisteredSchema", "SchemaReference", "SchemaRegistry"]

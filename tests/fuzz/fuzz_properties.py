"""Properties texts, and settings read from them."""

from __future__ import annotations

from contextlib import suppress

from kclient.config import AdminConfig, ConsumerConfig, ProducerConfig
from kclient.config.properties import parse_properties
from kclient.errors import KafkaError

CONFIGS = (ProducerConfig, ConsumerConfig, AdminConfig)
ESCAPED = {"\t": "\\t", "\n": "\\n", "\r": "\\r", "\f": "\\f", **{sign: f"\\{sign}" for sign in " \\=:#!"}}


def check(data: bytes) -> None:
    """The bytes are the text; what is not UTF-8 in it is replaced."""
    text = data.decode("utf-8", "replace")
    try:
        properties = parse_properties(text)
    except KafkaError:
        return
    assert parse_properties(written(properties)) == properties
    with suppress(KafkaError):
        CONFIGS[len(data) % 3].parse({"bootstrap.servers": "localhost:9092", **properties})


def written(properties: dict[str, str]) -> str:
    """The text that Java would write for these properties."""
    return "".join(f"{_escaped(name)}={_escaped(value)}\n" for name, value in properties.items())


def _escaped(text: str) -> str:
    return "".join(ESCAPED.get(sign) or _character(sign) for sign in text)


def _character(sign: str) -> str:
    if sign.isascii() and sign.isprintable():
        return sign
    units = sign.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at : at + 2].hex()}" for at in range(0, len(units), 2))


def seeds() -> list[bytes]:
    """The forms that the format knows, and every setting with its default."""
    texts = [
        "a=b\nc : d\ne f\n",
        "# comment\n! comment\n\n  key = value \\\n   continued \\\\\nlast",
        "k\\ e\\:y=\\u00e4\\t\\n\nempty\nempty2=\n=no name\n",
        "smile=\\ud83d\\ude00\r\nhalf=\\ud83d\rx\\",
        "bad=\\u12",
    ]
    for config in CONFIGS:
        texts += [f"{item.name}={item.default}\n" for item in config.settings().values()]
    return [text.encode() for text in texts]

"""Reading addresses."""

from __future__ import annotations

import pytest

from kclient.errors import ConfigError, NotYetSupportedError
from kclient.net.address import Address, parse_address, parse_bootstrap


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("localhost:9093", Address("localhost", 9093)),
        (" localhost:9093 ", Address("localhost", 9093)),
        ("localhost", Address("localhost", 9092)),
        ("broker-1.example.com:1", Address("broker-1.example.com", 1)),
        ("[::1]:9093", Address("::1", 9093)),
        ("[::1]", Address("::1", 9092)),
        ("::1", Address("::1", 9092)),
        ("fe80::1%eth0", Address("fe80::1%eth0", 9092)),
        ("PLAINTEXT://host:9093", Address("host", 9093)),
        ("plaintext://[::1]:9093", Address("::1", 9093)),
        ("tcp://host:9093", Address("host", 9093)),
        ("embedded:./data", Address("./data", 0, "embedded")),
        ("embedded:/var/lib/data", Address("/var/lib/data", 0, "embedded")),
        ("embedded:C:/data", Address("C:/data", 0, "embedded")),
        ("memory:NAME", Address("NAME", 0, "memory")),
        ("memory:1", Address("1", 0, "memory")),
        ("memory://NAME", Address("NAME", 0, "memory")),
        ("unix:/run/kclient.sock", Address("/run/kclient.sock", 0, "unix")),
    ],
)
def test_addresses(text: str, expected: Address) -> None:
    address = parse_address(text)
    assert address == expected
    assert parse_address(str(address)) == address


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        (":9092", "host:port"),
        ("host:99999", "not between 0 and 65535"),
        ("h:x", "not between 0 and 65535"),
        ("host:-1", "expected host:port"),
        ("a b:9092", "host:port"),
        ("[::1:9092", "[IPv6]:port"),
        ("memory:", "names nothing"),
        ("http://host:9092", "scheme 'http'"),
    ],
)
def test_what_is_no_address(text: str, reason: str) -> None:
    from kclient.net.connectors import check_scheme

    with pytest.raises(ConfigError) as caught:
        check_scheme(parse_address(text))
    assert reason in str(caught.value)


def test_port_may_be_needed() -> None:
    with pytest.raises(ConfigError, match="has no port"):
        parse_address("host", default_port=None)


def test_listener_types_have_to_fit() -> None:
    with pytest.raises(NotYetSupportedError, match="SASL_SSL"):
        parse_address("SASL_SSL://host:9092")
    assert parse_bootstrap("SSL://a:1,b:2", protocol="SSL") == [Address("a", 1), Address("b", 2)]
    for text, protocol, wanted in (("SSL://a:1", "PLAINTEXT", "SSL"), ("plaintext://a:1", "SSL", "PLAINTEXT")):
        with pytest.raises(ConfigError, match=rf"security\.protocol={protocol}; set security\.protocol={wanted}$"):
            parse_bootstrap(text, protocol=protocol)


def test_bootstrap() -> None:
    expected = [Address("a", 1), Address("b", 2)]
    assert parse_bootstrap("a:1, b:2,") == expected
    assert parse_bootstrap(["a:1", "b:2", "a:1"]) == expected
    for nothing in ("", " , ", []):
        with pytest.raises(ConfigError, match=r"bootstrap\.servers"):
            parse_bootstrap(nothing)


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("broker", 9092, Address("broker", 9092)),
        ("::1", 9092, Address("::1", 9092)),
        ("memory:NAME", 0, Address("NAME", 0, "memory")),
        ("memory:1", 0, Address("1", 0, "memory")),
        ("embedded:/a:b", 0, Address("/a:b", 0, "embedded")),
    ],
)
def test_brokers_of_metadata(host: str, port: int, expected: Address) -> None:
    address = Address.of_broker(host, port)
    assert address == expected
    assert address.broker_host == host

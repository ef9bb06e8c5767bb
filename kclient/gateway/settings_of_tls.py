"""Kafka's settings of listeners with TLS as the gateway knows them; `security/tls_listener.py` carries them out."""

from __future__ import annotations

from typing import Final

from kclient.config.setting import Choice, List, Password, Text
from kclient.config.tls_context import CLIENT_AUTH
from kclient.gateway.setting import BrokerSetting

_PEM = "`PEM`, or `PKCS12` (extra `pkcs12`); Kafka's default is JKS."

BROKER_SETTINGS_OF_TLS: Final = (
    BrokerSetting(
        "ssl.cipher.suites",
        List(),
        "",
        "Cipher suites that may be used, by their names in Java or in OpenSSL; empty for OpenSSL's choice. Of those of "
        "TLS 1.3 all or none can be named.",
    ),
    BrokerSetting(
        "ssl.client.auth",
        Choice(tuple(CLIENT_AUTH), exact=True),
        "none",
        "Whether clients show a certificate: `none` is asked for, one is `requested`, or `required`. As on Kafka "
        "listeners with SASL_SSL obey `listener.name.NAME.ssl.client.auth` alone.",
    ),
    BrokerSetting(
        "ssl.enabled.protocols", List(), "TLSv1.2,TLSv1.3", "TLS versions that may be used, of `TLSv1.2` and `TLSv1.3`."
    ),
    BrokerSetting("ssl.key.password", Password(), None, "Password of the private key, if it is encrypted."),
    BrokerSetting(
        "ssl.keystore.certificate.chain",
        Password(),
        None,
        "The certificate that listeners show and those that vouch for it, as PEM text.",
    ),
    BrokerSetting(
        "ssl.keystore.key", Password(), None, "Its private key as PEM text, instead of `ssl.keystore.location`."
    ),
    BrokerSetting(
        "ssl.keystore.location",
        Text(),
        None,
        "File with the private key and the certificate chain that listeners show. It is read again when it changes.",
    ),
    BrokerSetting(
        "ssl.keystore.password",
        Password(),
        None,
        "Password of a PKCS12 key store; PEM has none, see `ssl.key.password`.",
    ),
    BrokerSetting("ssl.keystore.type", Text(), "PEM", f"Format of the key store: {_PEM}"),
    BrokerSetting(
        "ssl.principal.mapping.rules",
        Text(),
        "DEFAULT",
        "How the subject of a client's certificate becomes the name of a user, as on Kafka: "
        "`RULE:pattern/replacement/[LU]` and `DEFAULT`, with commas between them.",
    ),
    BrokerSetting(
        "ssl.protocol",
        Choice(("TLSv1.3", "TLSv1.2", "TLS")),
        "TLSv1.3",
        "Highest TLS version that is used, whatever `ssl.enabled.protocols` has; `TLS` is the highest there is.",
    ),
    BrokerSetting(
        "ssl.truststore.certificates",
        Password(),
        None,
        "The certificates in the trust store as PEM text, instead of `ssl.truststore.location`.",
    ),
    BrokerSetting(
        "ssl.truststore.location",
        Text(),
        None,
        "File with the certificates that vouch for those of clients. It is read again when it has changed.",
    ),
    BrokerSetting(
        "ssl.truststore.password",
        Password(),
        None,
        "Password of a PKCS12 trust store, if its certificates are encrypted.",
    ),
    BrokerSetting("ssl.truststore.type", Text(), "PEM", f"Format of the trust store: {_PEM}"),
)

"""Kafka's settings of OAUTHBEARER and of delegation tokens as the gateway knows them; `security/` carries them out."""

from __future__ import annotations

from typing import Final

from kclient.config.setting import List, Number, Password, Text
from kclient.gateway.setting import LONG_MAX, BrokerSetting

_DAY: Final = 86_400_000

BROKER_SETTINGS_OF_TOKENS: Final = (
    BrokerSetting(
        "delegation.token.expiry.check.interval.ms",
        Number(1, LONG_MAX),
        "3600000",
        "How often delegation tokens that have ended are looked for, to be removed.",
    ),
    BrokerSetting(
        "delegation.token.expiry.time.ms",
        Number(1, LONG_MAX),
        str(_DAY),
        "How long a delegation token lives unless it is renewed.",
    ),
    BrokerSetting(
        "delegation.token.max.lifetime.ms",
        Number(1, LONG_MAX),
        str(7 * _DAY),
        "How long a delegation token lives at most, however often it is renewed.",
    ),
    BrokerSetting(
        "delegation.token.secret.key",
        Password(),
        None,
        "What delegation tokens are made with (KIP-48), the same at all gateways of a store; without it there are "
        "none. With another one all tokens end that were made before.",
    ),
)

BROKER_SETTINGS_OF_OAUTH: Final = (
    BrokerSetting(
        "sasl.oauthbearer.clock.skew.seconds",
        Number(0),
        "30",
        "Seconds by which the clocks of the identity provider and of the gateway may differ.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.expected.audience",
        List(),
        "",
        "Whom tokens of OAUTHBEARER are for: one of these has to be in the claim `aud`. Without it no token may have "
        "that claim, as on Kafka.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.expected.issuer",
        Text(),
        None,
        "Who has made tokens of OAUTHBEARER: what has to be the claim `iss`. Without it everybody whose keys are in "
        "the key set may.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.refresh.ms",
        Number(1, LONG_MAX),
        "3600000",
        "How often the key set is read again.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
        Number(1, LONG_MAX),
        "10000",
        "How long it takes at most until a key set that could not be read is asked for again.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
        Number(1, LONG_MAX),
        "100",
        "How long it takes until then the first time; it doubles from time to time.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.jwks.endpoint.url",
        Text(),
        None,
        "Where the keys are that tokens of OAUTHBEARER are checked against, as a JSON web key set: `https://...`, or "
        "`file:///...`.",
    ),
    BrokerSetting(
        "sasl.oauthbearer.scope.claim.name",
        Text(),
        "scope",
        "The claim that holds the scope: a text that is not blank, or a list of different ones; others are refused.",
    ),
    BrokerSetting("sasl.oauthbearer.sub.claim.name", Text(), "sub", "The claim that names the user."),
)
"""Each can be given for one listener, too, with the name of the mechanism in front of it or without."""

CALLBACK_HANDLER: Final = "sasl.server.callback.handler.class"

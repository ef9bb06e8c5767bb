"""What a failure of TLS means: which check failed, and which setting to change.

OpenSSL's reasons are names such as `CERTIFICATE_VERIFY_FAILED`; those with `ALERT` in them are what the other side
complained of.
"""

from __future__ import annotations

import ssl

from kclient.errors import SslAuthenticationError

__all__ = ["explain_client", "explain_server"]

_TRUST = (
    "put the certificate of the authority that signed it into ssl.truststore.location or ssl.truststore.certificates"
)
_KEYSTORE = "ssl.keystore.location, or ssl.keystore.key with ssl.keystore.certificate.chain"

_NOT_TRUSTED = {2, 18, 19, 20, 21, 24, 26, 27, 28, 79}
_WRONG_NAME = {62, 64}
_VERIFY = {
    9: "is not valid yet; is this machine's clock right?",
    10: "has expired; is this machine's clock right?",
    23: "has been revoked",
}

_NO_TLS = {
    "HTTP_REQUEST",
    "HTTPS_PROXY_REQUEST",
    "PACKET_LENGTH_TOO_LONG",
    "RECORD_LAYER_FAILURE",
    "UNKNOWN_PROTOCOL",
    "WRONG_VERSION_NUMBER",
}
_NO_VERSION = {"TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE", "UNSUPPORTED_PROTOCOL", "VERSION_TOO_LOW"}
_NO_CIPHER = {"TLSV1_ALERT_INSUFFICIENT_SECURITY", "NO_SHARED_CIPHER", "NO_CIPHERS_AVAILABLE", "WRONG_CIPHER_RETURNED"}
_CERTIFICATE_WANTED = {"TLSV13_ALERT_CERTIFICATE_REQUIRED", "SSLV3_ALERT_BAD_CERTIFICATE"}
_CERTIFICATE_REFUSED = {
    "SSLV3_ALERT_CERTIFICATE_EXPIRED",
    "SSLV3_ALERT_CERTIFICATE_REVOKED",
    "SSLV3_ALERT_CERTIFICATE_UNKNOWN",
    "SSLV3_ALERT_UNSUPPORTED_CERTIFICATE",
    "TLSV1_ALERT_ACCESS_DENIED",
    "TLSV1_ALERT_DECRYPT_ERROR",
    "TLSV1_ALERT_UNKNOWN_CA",
}


def explain_client(error: OSError, *, handshake: bool = False) -> Exception:
    """The error of a client's TLS stream.

    Args:
        error: What OpenSSL or the socket raised.
        handshake: Whether the handshake was still under way.

    Returns:
        `SslAuthenticationError` if a new attempt would end the same way; else an `OSError`, the given one if there is
        nothing to add to it.
    """
    if isinstance(error, ssl.SSLCertVerificationError):
        return SslAuthenticationError(_verification(error))
    if handshake and (isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError))):
        return ConnectionResetError(
            "the broker closed the connection during the TLS handshake; if its listener does not use TLS, set "
            "security.protocol=PLAINTEXT (or SASL_PLAINTEXT)"
        )
    if not isinstance(error, ssl.SSLError):
        return error
    reason = error.reason or str(error)
    return SslAuthenticationError(_client_text(reason) if error.reason else f"TLS failed: {reason}")


def _verification(error: ssl.SSLCertVerificationError) -> str:
    said = error.verify_message.rstrip(".")
    if error.verify_code in _WRONG_NAME:
        return (
            f"the broker's certificate is for another name: {said}; connect to the broker by a name in its "
            "certificate (bootstrap.servers here, advertised.listeners at the broker). Setting "
            "ssl.endpoint.identification.algorithm to empty leaves the name unchecked, and the connection open to "
            "impostors"
        )
    if error.verify_code in _VERIFY:
        return f"the broker's certificate, or one that vouches for it, {_VERIFY[error.verify_code]}"
    if error.verify_code in _NOT_TRUSTED:
        return f"the broker's certificate is not trusted ({said}): {_TRUST}"
    return f"the broker's certificate is refused: {said}"


def _client_text(reason: str) -> str:
    if reason in _NO_TLS:
        return (
            f"the broker's listener does not speak TLS ({reason}): use the port of its TLS listener, or set "
            "security.protocol=PLAINTEXT (or SASL_PLAINTEXT)"
        )
    if reason in _NO_VERSION:
        return f"no TLS version in common with the broker ({reason}): see ssl.enabled.protocols and ssl.protocol"
    if reason in _NO_CIPHER:
        return f"no cipher suite in common with the broker ({reason}): see ssl.cipher.suites"
    if reason in _CERTIFICATE_WANTED:
        return f"the broker asks for a client certificate that it accepts ({reason}): set {_KEYSTORE}"
    if reason in _CERTIFICATE_REFUSED:
        return f"the broker does not accept this client's certificate ({reason}): see {_KEYSTORE}"
    if reason == "SSLV3_ALERT_HANDSHAKE_FAILURE":
        return (
            f"the broker refused the handshake ({reason}): either it asks for a client certificate (set {_KEYSTORE}), "
            "or there is no cipher suite or TLS version in common (ssl.cipher.suites, ssl.enabled.protocols)"
        )
    if "ALERT" in reason:
        return f"the broker refused TLS ({reason}); its log says why"
    return f"TLS failed ({reason})"


def explain_server(error: OSError, *, handshake: bool = False) -> Exception:
    """The error of a server's TLS stream: an `OSError` whose text is for the log."""
    if handshake and isinstance(error, (ssl.SSLEOFError, ssl.SSLZeroReturnError, ConnectionError)):
        return ConnectionResetError("the client closed the connection during the TLS handshake")
    if not isinstance(error, ssl.SSLError):
        return error
    reason = error.reason or str(error)
    if isinstance(error, ssl.SSLCertVerificationError):
        return ConnectionAbortedError(f"the client's certificate is refused: {error.verify_message}")
    if reason == "PEER_DID_NOT_RETURN_A_CERTIFICATE":
        return ConnectionAbortedError("the client showed no certificate, and this listener asks for one")
    if reason in _NO_TLS:
        return ConnectionAbortedError(f"the client does not speak TLS, and this listener asks for it ({reason})")
    if reason in _NO_VERSION:
        return ConnectionAbortedError(f"no TLS version in common with the client ({reason}): see ssl.enabled.protocols")
    if reason in _NO_CIPHER:
        return ConnectionAbortedError(f"no cipher suite in common with the client ({reason}): see ssl.cipher.suites")
    if "ALERT" in reason:
        return ConnectionAbortedError(f"the client refused TLS ({reason})")
    return ConnectionAbortedError(f"TLS failed ({reason})")

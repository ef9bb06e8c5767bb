"""SASL: the mechanisms PLAIN, SCRAM and OAUTHBEARER, a client's login, and authentication in front of a server.

- `plain`, `scram`, `oauthbearer`: the mechanisms, client's and server's side, as state machines without I/O.
- `authentication`: a client's SaslHandshake and SaslAuthenticate on one connection.
- `login`: what a client authenticates with, made from its settings; fetches tokens and renews them.
- `token`, `unsecured`, `client_credentials`: OAuth tokens, and where they come from.
- `session`, `server`: the server's side.
"""

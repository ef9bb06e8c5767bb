"""Byte streams, connectors by address scheme, pipelined connections of clients, and the server's side.

- `address`: what `bootstrap.servers` and metadata name.
- `connectors`: which function makes the byte stream for an address.
- `streams`: byte streams over sockets and in memory; `tls`: over sockets, encrypted.
- `frames`, `channel`: frames in and out of a stream; `channel_kinds` chooses from `loop_channel`, `memory_channel`,
  `task_channels`.
- `connection`: a client's pipelined requests; `send_queue`: when they may leave; `disconnect_errors`: why one ended.
- `sasl`: authentication, both sides.
- `server`: accepting connections, ordered replies, back-pressure.
"""

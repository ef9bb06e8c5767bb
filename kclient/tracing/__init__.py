"""Spans of the clients for OpenTelemetry, by its conventions for messaging systems; switched on by `tracing`.

This room does no I/O and knows no client: producers and consumers have spans made only where they were told to when
they were put together, so that nothing is asked of a record while tracing is off.

      resolve_tracing    what the setting `tracing` comes down to (`resolve`)
      ClientTracing      the spans of one client (`spans`); the only file that needs the extra `otel`
"""

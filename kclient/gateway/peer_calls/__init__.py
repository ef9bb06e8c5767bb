"""What gateways ask of one another over the wire: requests of Kafka's brokers, on connections that are kept.

`ClusterPeers` (`routing.py`) finds who is to be asked. See `docs/internals/gateway.md`, Peers.
"""

"""What the gateway keeps in the manager's key-value part: every key, and the format of every row.

=============================  =============================================================  ======================
key                            row                                                            kept by
=============================  =============================================================  ======================
`kafka/topic/NAME`             `topics.TopicRow`: a topic's id, partitions and settings       `gateway.topics`
`kafka/intent/NAME`            `topics.IntentRow`: a creation or deletion under way           `gateway.topics`
`kafka/internal-topics`        sizes of Kafka's own topics, `broker.encode_internal_topics`   `gateway.topics`
`kafka/log/ID/N`               a partition's checkpoint, `partitions.encode_checkpoint`       `gateway.partitions`
`kafka/log-start/ID/N`         where a trimmed partition starts, a `numbers.NumberRow`        `gateway.partitions`
`kafka/extents/ID/N`           the extents of a partition, `extents.encode_extents`           `gateway.extents`
`kafka/extents/ID/N/chunks`    where some of its offsets lie, `extents.encode_chunks`         `gateway.extents`
`kafka/indexed/ID/0`           what the index of a shared topic tells, `virtual.IndexedRow`   `gateway.virtual`
`kafka/blocks/ID/N/ROW`        blocks of a partition's index, `virtual.encode_blocks`         `gateway.virtual`
`kafka/entries/ID/N/BLOCK`     the entries of a block, `virtual.encode_entries`               `gateway.virtual`
`kafka/aborted/ID/N/CHUNK`     aborted transactions of a partition, `aborted.encode_chunk`    `gateway.partitions`
`kafka/unit/ID/N`              a unit's own leader epoch, `units.UnitRow`                     `gateway.unit_epochs`
`kafka/share/ID/GROUP/N`       what a share group was given, `share_partitions.SharedRow`     `gateway.shares`
`kafka/transaction/NAME`       a transactional id, `transactions.encode_transaction`          `gateway.transactions`
`kafka/config/broker`          what AlterConfigs has set, `broker.encode_settings`            `gateway.dynamic_config`
`kafka/config/group/GROUP`     settings of a group, `broker.encode_settings`                  `gateway.groups`
`kafka/config/client-metrics/` a subscription to metrics, by name, `broker.encode_settings`   `gateway.telemetry`
`kafka/features`               what UpdateFeatures has set, `features.FeaturesRow`            `gateway.feature_levels`
`kafka/scram/USER`             who logs in, and how, `scram_credentials.ScramRow`             `gateway.security`
`kafka/scram-decoys`           what other names are shown, `scram_credentials.ScramDecoyRow`  `gateway.security`
`kafka/delegation-token/ID`    who logs in with one, `delegation_tokens.DelegationTokenRow`   `gateway.security`
`kafka/quota/ENTITY`           what an entity's clients may use, `quotas.encode_quotas`       `gateway.quota_entries`
`kafka/acl/HASH`               an entry of the access control lists, `acls.encode_acl`        `gateway.security`
`kafka/producer-ids`           the first producer id that is free, a `numbers.NumberRow`      `gateway.producer_ids`
`kafka/leader-epoch`           above it no leader epoch was given, a `numbers.NumberRow`      `gateway.ownership`
`kafka/assignment`             who serves from when on, `assignment.encode_generations`       `cluster_generations`
`kafka/released/N`             what a gateway has handed over, `assignment.ReleasedRow`       `gateway.releases`
`kafka/node/N`                 a gateway that serves the store, `gateways.GatewayRow`         `gateway.membership`
`kafka/cluster-id`             what clients know the store by, `broker.encode_cluster_id`     `gateway.identity`
`group/GROUP`                  a group; a classic one's members, a streams group's topology   `gateway.groups`
`group-member/GROUP/MEMBER`    a member: `consumer_groups`, `streams_groups`                  `gateway.groups`
`group-offset/GROUP/TOPIC/N`   a committed offset, `groups.encode_offset`                     `gateway.groups`
`group-pending/GROUP/NAME`     what a transaction commits, `pending.encode_pending_steps`     `gateway.groups`
`group-share/GROUP/ID`         a topic of a share group, `share_partitions.SHARED_TOPIC`      `gateway.shares`
=============================  =============================================================  ======================

Leases have names of the same kind: `kafka/gateway`, `kafka/node/N`, and of the first versions `kafka/gateway/N`.

Every row says its format, which is checked, and ends with a checksum (`htp/rows.py`): a digit that has become another
one is as visible as a missing brace. Rows of earlier formats, and those without a checksum, are read as they are, and
written anew when they change. A row that cannot be read raises `ValueError`; what becomes of its owner is the
owner's matter, and nothing else may suffer.
"""

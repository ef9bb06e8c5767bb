"""What producer, consumer and admin client share: metadata, connections, version negotiation, retries."""

from __future__ import annotations

from kclient.cluster.backoff import Backoff as Backoff
from kclient.cluster.bootstrap import cluster_addresses as cluster_addresses
from kclient.cluster.client_state import CLIENT_TABLE as CLIENT_TABLE
from kclient.cluster.client_state import ClientEvent as ClientEvent
from kclient.cluster.client_state import ClientState as ClientState
from kclient.cluster.client_state import Closing as Closing
from kclient.cluster.client_state import leaves_in_order as leaves_in_order
from kclient.cluster.cluster import Cluster as Cluster
from kclient.cluster.config import ClusterConfig as ClusterConfig
from kclient.cluster.coordinators import GROUP as GROUP
from kclient.cluster.coordinators import TRANSACTION as TRANSACTION
from kclient.cluster.metadata import ZERO_ID as ZERO_ID
from kclient.cluster.metadata import ClusterSnapshot as ClusterSnapshot
from kclient.cluster.metadata import MetadataCache as MetadataCache
from kclient.cluster.metadata import PartitionMetadata as PartitionMetadata
from kclient.cluster.metadata import TopicMetadata as TopicMetadata
from kclient.cluster.metadata import topic_error as topic_error
from kclient.cluster.metadata import what_lacks as what_lacks
from kclient.cluster.retries import retry as retry
from kclient.cluster.trial import Trial as Trial
from kclient.cluster.versions import version_for as version_for

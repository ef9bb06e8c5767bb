"""Which gateways serve the store: this one registers, and follows the others.

- `registration.py`: this gateway's row and lease, from its start to its end; the number that it is allotted.
- `states.py`, `members.py`: who of the others is live, decided from what was seen (pure).
- `view.py`: sees to it that something is seen.
- `lease_looks.py`: looks at leases, once a second, for this and for the eviction of lost gateways.
- `living.py`: which runs live, asked of the store at once.
"""

from kclient.gateway.membership.lease_looks import LeaseLooks as LeaseLooks
from kclient.gateway.membership.living import living_runs as living_runs
from kclient.gateway.membership.members import LiveGateways as LiveGateways
from kclient.gateway.membership.members import Members as Members
from kclient.gateway.membership.registration import Registration as Registration
from kclient.gateway.membership.registration import evicting as evicting
from kclient.gateway.membership.view import ClusterView as ClusterView

__all__ = ["ClusterView", "LeaseLooks", "LiveGateways", "Members", "Registration", "evicting", "living_runs"]

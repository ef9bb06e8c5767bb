"""Which gateway leads which unit: decided from generations of gateways by every one of them alike, without asking.

- `rendezvous.py`: the gateway that a unit belongs to, among some.
- `generations.py`: which gateways there were from when on; leaders and their epochs follow from that.
- `causes.py`: why a generation began, which is only told.
"""

from kclient.gateway.assignment.causes import Cause as Cause
from kclient.gateway.assignment.causes import CauseKind as CauseKind
from kclient.gateway.assignment.generations import Assigned as Assigned
from kclient.gateway.assignment.generations import Generation as Generation
from kclient.gateway.assignment.generations import Generations as Generations
from kclient.gateway.assignment.generations import Move as Move
from kclient.gateway.assignment.rendezvous import chosen as chosen
from kclient.gateway.assignment.rendezvous import fingerprint as fingerprint

__all__ = ["Assigned", "Cause", "CauseKind", "Generation", "Generations", "Move", "chosen", "fingerprint"]

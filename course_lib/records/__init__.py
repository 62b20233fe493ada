"""What training was found to do: each claim with the runs that it rests on, of several seeds, rates and controls.

`python benchmarks/claims.py NAME` trains, and writes `claims/NAME.json` in this folder; `claim(NAME)` reads it.
"""

from .claim import Claim as Claim
from .claim import claim as claim

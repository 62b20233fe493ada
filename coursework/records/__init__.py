"""What was measured by programs that run too long for a notebook; the notebooks read it, wherever the package lies.

`claim(NAME)` is what training was found to do, with the runs that it rests on, of several seeds, rates and controls:
`python benchmarks/claims.py NAME` trains, and writes `claims/NAME.json` in this folder. `record(NAME)` is any other
result, `measured/NAME.json`; it holds the command that wrote it.
"""

from .claim import Claim as Claim
from .claim import claim as claim
from .record import record as record

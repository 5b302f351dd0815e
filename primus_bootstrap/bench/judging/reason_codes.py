"""Why a verdict is `unknown`, as a word for programs. A verdict without one is unknown because something gave no answer.

They go beside the verdicts, as a mapping from the verdict: the record's fields are shared with the programs on the hosts.
"""

from __future__ import annotations

from typing import Literal, get_args

# no_yardstick: measured, and there is nothing to hold it against: no floor for the model, too few peers or too unlike ones, no history.
# noise:        measured, and the doubt is larger than what is to be told.
# shared:       measured, and most hosts are off alike: rather something that they share.
# suspect:      something is wrong here, or with this path, and it is not proved whose fault it is.
# unsteady:     it was in a group whose run failed once and passed another time, and the culprit was not found.
# large:        groups of that many hosts fail whoever is in them.
Code = Literal["no_yardstick", "noise", "shared", "suspect", "unsteady", "large"]
CODES: tuple[Code, ...] = get_args(Code)

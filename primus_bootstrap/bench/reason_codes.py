"""Codes for the reason of an `unknown` verdict. A verdict without a code is unknown because a program gave no answer.

The codes are a mapping beside the verdicts, because programs on the hosts share the fields of the verdict record.
"""

from __future__ import annotations

from typing import Literal

# no_reference: measured, but there is nothing to compare with: no floor for the model, too few or too different peers, no history
# noise:        measured, but the uncertainty is larger than the difference
# shared:       measured, but most hosts deviate in the same way, so the cause is probably shared
# suspect:      this host or path is part of a fault; which part is at fault is not proved
# unsteady:     a run with this host failed once and passed another time, and the cause was not found
# large:        groups of this many hosts fail, whichever hosts are in them
Code = Literal["no_reference", "noise", "shared", "suspect", "unsteady", "large"]

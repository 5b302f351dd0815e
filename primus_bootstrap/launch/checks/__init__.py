"""The node checks: they read the state of one node without load and change nothing. Each check runs in its own process with a time limit.

gpu/ network/ host/ job/     one module per check with `CHECK = Check(...)`; the folder is the check's area
model.py                     the types `Check` and `Node`, and functions that build verdicts
tools.py nvidia.py pcie.py   code that several checks share
expected.py limits.py        the expected values of a node; limits with their sources (data/checks)
catalogue.py runner.py       find, select and run checks
preflight.py                 the task `preflight` and the command `primus-cli preflight`
"""

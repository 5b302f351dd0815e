"""What one node shows of itself without load: one small file a check, each run in a process of its own that is killed where it hangs.

Checks observe and never change: they read sysfs, procfs and the kernel log, and ask tools only for what no file says.

    gpu/ network/ host/ job/   one module a check, each with `CHECK = Check(...)`; the folder is the check's area
    model.py                   what a check is, what it gets, and the records that it gives
    ask.py nvidia.py pcie.py   what several checks share
    expected.py data.py        what the inventory expects of the node; limits with their sources (data/checks)
    catalogue.py runner.py     which checks there are; running them
    program.py                 the task `preflight` and `primus-cli preflight`
"""

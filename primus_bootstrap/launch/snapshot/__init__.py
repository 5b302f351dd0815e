"""The snapshot of a run, comparing two of them, and replaying one."""

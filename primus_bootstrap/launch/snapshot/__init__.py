"""Take the snapshot of a run, compare two snapshots, and replay one."""

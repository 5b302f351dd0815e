"""Checks of the host: memory, disks, clock and kernel; one module per check."""

"""Detect GPUs, NICs and NUMA nodes from sysfs, and build the environment profile of a host."""

"""Detection of GPUs, NICs and NUMA nodes, and the environment profiles built from it."""

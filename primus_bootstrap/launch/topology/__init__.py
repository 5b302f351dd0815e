"""Show the topology of a node (GPUs, NICs, NUMA nodes, PCIe switches, links) and of a fabric (racks, switches, hosts)."""

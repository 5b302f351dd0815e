"""What runs on the nodes: GPU and NIC detection and environment profiles; standard library and yaml only."""

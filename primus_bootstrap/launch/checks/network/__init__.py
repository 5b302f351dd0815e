"""Checks of RDMA devices and network links; one module per check."""

"""Checks of the RDMA devices and network links: one module a check."""

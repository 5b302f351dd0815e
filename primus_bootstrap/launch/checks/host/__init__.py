"""Checks of the machine around the GPUs: one module a check."""

"""Checks of the GPUs: one module a check."""

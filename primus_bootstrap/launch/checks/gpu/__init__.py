"""Checks of the GPUs; one module per check."""

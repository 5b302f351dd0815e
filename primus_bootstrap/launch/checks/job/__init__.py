"""Checks of the prerequisites of a run, also in containers; one module per check."""

"""Checks of what a run needs of its node, in a container as well: one module a check."""

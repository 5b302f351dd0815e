"""The adapter of MaxText."""

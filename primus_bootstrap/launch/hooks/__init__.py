"""Hooks and patches of a run: finding and running them."""

"""Runs over several hosts: which groups run, and what their results say about hosts and the paths between them."""

"""Edits of hosts.yaml and of the files beside it. Every byte outside the edit stays as it is."""

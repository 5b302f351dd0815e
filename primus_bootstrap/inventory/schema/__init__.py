"""The variables and groups of hosts.yaml: their names, types and meaning."""

"""Convert INI inventories to hosts.yaml."""

"""Import of INI inventories."""

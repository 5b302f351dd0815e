"""Read the YAML files of an inventory, with the file and line of every value."""

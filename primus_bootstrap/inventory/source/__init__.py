"""The YAML files of an inventory, with file and line of every value."""

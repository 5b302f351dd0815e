"""The command line of primus-cli: parsing, settings, help."""

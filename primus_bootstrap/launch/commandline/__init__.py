"""The command line of primus-cli: verbs and help."""

"""The command line of primus-cli: parser, settings and help."""

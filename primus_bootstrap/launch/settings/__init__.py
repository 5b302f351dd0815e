"""The settings of primus-cli: their layers, and the options of the command line that set them."""

"""One rank of a run: its supervisor, its log files, and following them."""

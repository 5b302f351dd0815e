"""From findings to file contents: pure functions, nothing is written here."""

"""From findings to file contents."""

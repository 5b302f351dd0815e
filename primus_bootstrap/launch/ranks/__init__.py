"""Supervise the ranks of a run, write their log files, and follow them."""

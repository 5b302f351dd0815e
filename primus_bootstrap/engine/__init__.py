"""Plan, run, watch, report. Only this package imports ansible_runner."""

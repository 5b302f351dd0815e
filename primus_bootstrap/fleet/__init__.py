"""Run one command on many hosts in parallel, with pyinfra, and parse the results."""

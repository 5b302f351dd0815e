"""Rules about more than one line of hosts.yaml, one module for each subject."""

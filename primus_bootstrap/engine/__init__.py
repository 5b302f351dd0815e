"""Plan, run, watch, report: the only sub-package that starts Ansible."""

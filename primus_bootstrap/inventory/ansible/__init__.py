"""What Ansible makes of an inventory: its own managers, the variables of each host, groups and role filters."""

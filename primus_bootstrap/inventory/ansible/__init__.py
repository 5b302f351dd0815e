"""Load an inventory with Ansible: its variables, its addresses, and the filters of the roles."""

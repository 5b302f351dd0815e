"""What an apply fetches, as one folder: listed from the roles, locked with sums, downloaded and checked. Contacts no host."""

"""Collect the downloads of an apply in one folder: list them from the roles, lock them with checksums, download and check them."""

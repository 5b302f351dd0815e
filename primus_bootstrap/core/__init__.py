"""Modules that all other packages may import, also on nodes. They need only Python 3.9 and the standard library."""

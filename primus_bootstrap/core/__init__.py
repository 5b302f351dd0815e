"""What every other package may import, also on hosts: Python 3.9 and the standard library, nothing else of primus_bootstrap."""

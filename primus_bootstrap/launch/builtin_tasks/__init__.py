"""The tasks of this program, one module each with `TASK = Task(...)`."""

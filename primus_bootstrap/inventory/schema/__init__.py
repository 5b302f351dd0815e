"""Which variables exist, their types, and which a role requires."""

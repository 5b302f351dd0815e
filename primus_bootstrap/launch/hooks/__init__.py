"""Find and run the hooks and patches of a run."""

"""Choose which hosts a job gets, and in which order."""

"""Which hosts a job is offered, and in which order."""

"""Plan and start a run with the runtimes direct, container and slurm."""

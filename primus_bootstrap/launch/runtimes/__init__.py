"""The runtimes direct, container and slurm: planning and starting a run."""

"""The watcher `primus-watch`: starts and restarts a training job. Its state is on shared storage, so it may be killed at any time."""

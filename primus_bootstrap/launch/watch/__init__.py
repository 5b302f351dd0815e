"""`primus-watch`: keeps a job's restart policy. Its state lies on shared storage; killing it loses nothing."""

"""Run one small read-only script on every host in parallel; the only sub-package that knows pyinfra."""

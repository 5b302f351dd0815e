"""Adapters of the training backends. No module here imports a backend: each one runs in an environment of its own."""

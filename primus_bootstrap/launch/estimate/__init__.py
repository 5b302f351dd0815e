"""Estimate memory and speed of a recipe on an allocation of GPUs, before anything is started or queued."""

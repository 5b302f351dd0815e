"""The adapter of TorchTitan."""

"""Turns bare-metal GPU servers and one hosts.yaml into a training cluster."""

__version__ = "0.1.0"

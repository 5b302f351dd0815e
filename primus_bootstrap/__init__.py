"""From bare-metal GPU servers and one hosts.yaml to a training cluster."""

__version__ = "0.1.0"

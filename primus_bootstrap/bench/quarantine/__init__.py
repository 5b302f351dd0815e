"""The bench policy, and the gate that decides which hosts serve."""

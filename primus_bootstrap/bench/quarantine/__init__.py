"""The policy of the bench, and the gate that decides which hosts are quarantined or released."""

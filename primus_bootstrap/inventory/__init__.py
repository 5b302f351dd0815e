"""hosts.yaml in, a frozen `Cluster` out, or every problem at once; contacts no host."""

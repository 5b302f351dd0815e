"""The options and settings of the programs in workloads/, read from their source: this machine may lack torch, which they import."""

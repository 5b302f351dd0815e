"""Judge what benchmarks measured. Pure functions and plain data: no host is contacted, and no benchmark is run from here."""

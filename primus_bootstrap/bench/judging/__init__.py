"""From measured values to verdicts: criteria, statistics, and what to measure again."""

"""Evaluate measured values: compare them, derive verdicts, and choose what to measure again."""

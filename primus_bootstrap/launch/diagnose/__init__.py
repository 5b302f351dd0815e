"""Diagnose failed runs from their files: the rank that failed first, and the cause."""

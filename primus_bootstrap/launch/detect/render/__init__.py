"""Render the detected values as files, and write them."""

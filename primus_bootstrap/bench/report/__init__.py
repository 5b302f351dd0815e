"""Reports of a finished bench: HTML, SVG, JUnit XML and table rows."""

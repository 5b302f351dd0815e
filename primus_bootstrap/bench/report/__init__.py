"""Reports of a finished bench: JSON, HTML, JUnit XML and table rows."""

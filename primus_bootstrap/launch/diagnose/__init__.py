"""Why a run failed: from its files to the first failing rank and the cause."""

"""What was measured: reading results, the history, and the store on the controller."""

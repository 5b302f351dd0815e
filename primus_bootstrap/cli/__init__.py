"""`primus-bootstrap`: one module for each group of verbs. On the controller only this package prints, prompts and exits."""

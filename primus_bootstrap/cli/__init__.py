"""`primus-bootstrap`: one module a group of verbs; the only place that prints, prompts or exits."""

"""`primus-bootstrap`: one module for each group of verbs.

On the controller only this package prints, prompts and exits, and the two programs that it starts: the shim of Ansible and the worker of
fan-outs.
"""

"""Kubespray, driven only through variables: the pinned release, its values, its commands, and what is judged before it runs."""

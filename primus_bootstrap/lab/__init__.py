"""The lab: local containers with systemd and sshd that replace servers for trials and tests. All access to them is over SSH."""

"""The lab: local systemd containers with sshd that stand in for servers; whatever works on them goes through real SSH and apt."""

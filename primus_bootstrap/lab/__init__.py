"""The local hosts: systemd containers with sshd on a network of their own."""

#!/bin/sh
# Turn the packages in the folder $1 into a node: run by mmdebstrap as its customize hook.
set -eu
root=$1

chroot "$root" useradd --create-home --shell /bin/bash --uid 1000 primus
# No password opens the account, and unlike '!' this does not read as "locked" to sshd.
chroot "$root" usermod --password '*' primus
printf 'primus ALL=(ALL:ALL) NOPASSWD:ALL\n' > "$root/etc/sudoers.d/primus"
chmod 0440 "$root/etc/sudoers.d/primus"

mkdir -p "$root/etc/ssh/sshd_config.d"
cat > "$root/etc/ssh/sshd_config.d/10-primus-lab.conf" << 'CONF'
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin no
UseDNS no
# The lab's key lies in the second place, put there by root; a role may manage the first.
AuthorizedKeysFile .ssh/authorized_keys /etc/ssh/authorized_keys/%u
CONF
# Every node gets its own host key and machine id when it is made, its apt settings from the machine.
rm -f "$root"/etc/ssh/ssh_host_*
: > "$root/etc/machine-id"
rm -f "$root/var/lib/dbus/machine-id"
rm -rf "$root"/etc/apt/sources.list "$root"/etc/apt/sources.list.d/* "$root"/etc/apt/auth.conf.d/* "$root/etc/apt/apt.conf.d/99mmdebstrap"
# Old, so that Ansible's cache_valid_time fetches the lists instead of trusting an empty folder.
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*
touch -d @0 "$root/var/lib/apt/lists"

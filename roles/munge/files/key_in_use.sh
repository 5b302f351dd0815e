# Print the SHA-256 checksum of the key that munged uses, if a daemon of Slurm runs on this host; nothing otherwise.
#   key_in_use.sh APPLIED KEY_FILE
# APPLIED has the checksums of the files that munged has read at its start. A munged that this role did not configure has no such file.
systemctl is-active slurmctld slurmd slurmdbd 2> /dev/null | grep -qx active || exit 0
sum=$(sed -n "s|^\([0-9a-f]\{64\}\)  $2\$|\1|p" "$1" 2> /dev/null)
[ -n "$sum" ] || sum=$(sha256sum "$2" 2> /dev/null | cut -d ' ' -f 1)
echo "$sum"

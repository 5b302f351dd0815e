# Print the sha256 sum of the key that munged runs with, where a daemon of Slurm runs beside it; nothing where none would miss the key.
# $1 is what munged noted at its start, $2 the key: a munged that is not ours has noted nothing.
systemctl is-active slurmctld slurmd slurmdbd 2> /dev/null | grep -qx active || exit 0
sum=$(sed -n "s|^\([0-9a-f]\{64\}\)  $2\$|\1|p" "$1" 2> /dev/null)
[ -n "$sum" ] || sum=$(sha256sum "$2" 2> /dev/null | cut -d ' ' -f 1)
echo "$sum"

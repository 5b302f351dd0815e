# Unmount the volume on $2, now and at boot, if no program uses it; $1 is its unit. Program $3 lists users, program $4 restricts the trash again.
# Exit code 4 and the users if the mount is in use. With $5 = look, change nothing.
users=$(timeout 60 python3 -I -B "$3" "$2") || exit 1
[ -z "$users" ] || { echo "$users"; exit 4; }
[ "$5" != look ] || exit 0
mounted() { grep -q " $2 fuse" /proc/mounts; }
# Not `systemctl stop`, which would end the process even if a program of root has files open.
if mounted "$@" && ! timeout 60 umount --recursive "$2"; then
    sh "$4" "$2" > /dev/null
    echo 'programs of root'
    exit 4
fi
# The unit may have mounted it again.
systemctl disable --quiet --now "$1" || exit 1
! mounted "$@"

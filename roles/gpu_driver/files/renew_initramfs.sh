# Below root $1, renew the initramfs of kernel $2 where it holds one of the modules $3… and is older than what the disk says of modules.
# initramfs-tools copies all of /etc/modprobe.d, so a module in there is loaded with the options, and in the version, of that day.
set -eu
root=${1%/} kernel=$2
shift 2
image=$root/boot/initrd.img-$kernel
command -v update-initramfs > /dev/null && [ -e "$image" ] && [ $# -gt 0 ] || exit 0
[ "$root/etc/modprobe.d" -nt "$image" ] || [ "$root/lib/modules/$kernel/updates/dkms" -nt "$image" ] || exit 0
# A module's file may have - where its name has _.
names=$(printf '%s|' "$@" | sed 's/_/[-_]/g; s/|$//')
lsinitramfs "$image" | grep -E "/($names)\.ko" > /dev/null || exit 0
update-initramfs -u -k "$kernel"
echo renewed

# Usage: renew_initramfs.sh ROOT KERNEL MODULE...
# Update the initramfs of KERNEL if it has one of the modules and is older than /etc/modprobe.d or the DKMS modules below ROOT.
# initramfs-tools copies /etc/modprobe.d, so a module in the initramfs is loaded with the options and in the version of that time.
set -eu
root=${1%/} kernel=$2
shift 2
image=$root/boot/initrd.img-$kernel
command -v update-initramfs > /dev/null && [ -e "$image" ] && [ $# -gt 0 ] || exit 0
[ "$root/etc/modprobe.d" -nt "$image" ] || [ "$root/lib/modules/$kernel/updates/dkms" -nt "$image" ] || exit 0
# The file name of a module can have - where its name has _.
names=$(printf '%s|' "$@" | sed 's/_/[-_]/g; s/|$//')
lsinitramfs "$image" | grep -E "/($names)\.ko" > /dev/null || exit 0
update-initramfs -u -k "$kernel"
echo updated

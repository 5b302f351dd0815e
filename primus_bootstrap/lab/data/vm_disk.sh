#!/bin/sh
# Write a bootable disk from the root file system in an archive: vm_disk.sh ARCHIVE DISK SIZE_MIB. Needs root, because it creates files of
# several owners. Needs no loop device.
set -eu
archive=$1 disk=$2 size_mib=$3
offset=4194304 # the first partition begins here; GRUB lies before it

root=$(mktemp --directory "$disk.XXXXXX")
trap 'rm -rf "$root"' EXIT
trap 'exit 1' HUP INT TERM
tar --extract --file "$archive" --directory "$root" --numeric-owner --xattrs --xattrs-include='*'
truncate --size 0 "$disk"
truncate --size "${size_mib}M" "$disk"
printf 'start=%d, type=83, bootable\n' $((offset / 512)) | /sbin/sfdisk --quiet "$disk"
/sbin/mke2fs -q -t ext4 -b 4096 -d "$root" -E offset=$offset "$disk" $(((size_mib * 1048576 - offset) / 4096))
# The defaults in boot.img and core.img are right for this place: core.img begins at sector 1.
dd status=none conv=notrunc bs=440 count=1 if="$root/boot/grub/i386-pc/boot.img" of="$disk"
dd status=none conv=notrunc bs=512 seek=1 if="$root/boot/grub/i386-pc/core.img" of="$disk"

#!/bin/sh
# Add to the packages in the folder $1 what a virtual machine needs beyond a container: a boot loader, a network, its own files.
# Run by mmdebstrap as a customize hook after customize.sh.
set -eu
root=$1

printf '/dev/vda1 / ext4 errors=remount-ro 0 1\n' > "$root/etc/fstab"
mkdir -p "$root/etc/systemd/network" "$root/etc/systemd/system.conf.d" "$root/etc/default/grub.d"
printf '[Match]\nType=ether\n\n[Network]\nDHCP=ipv4\n' > "$root/etc/systemd/network/80-primus-lab.network"
# An emulated processor on a busy machine needs minutes for what takes seconds elsewhere.
printf '[Manager]\nDefaultTimeoutStartSec=900\nDefaultDeviceTimeoutSec=900\nDefaultTimeoutStopSec=300\n' \
    > "$root/etc/systemd/system.conf.d/10-primus-lab.conf"

# The second disk is a tar archive with the files of this machine: keys, names, apt settings (node_files.py).
cat > "$root/etc/systemd/system/primus-lab-seed.service" << 'UNIT'
[Unit]
Description=Extract the files of this virtual machine from its second disk
DefaultDependencies=no
ConditionPathExists=!/etc/ssh/ssh_host_ed25519_key
Requires=dev-vdb.device
After=dev-vdb.device local-fs.target systemd-remount-fs.service
Before=sysinit.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/tar --extract --file /dev/vdb --directory / --no-same-owner
ExecStart=/bin/hostname --file /etc/hostname

[Install]
WantedBy=sysinit.target
UNIT
chroot "$root" systemctl --quiet enable systemd-networkd.service primus-lab-seed.service

# GRUB without grub-install, which needs a block device: vm_disk.sh copies boot.img and core.img to the sectors before the partition.
cat > "$root/etc/default/grub.d/10-primus-lab.cfg" << 'GRUB'
GRUB_TIMEOUT=0
GRUB_CMDLINE_LINUX_DEFAULT=""
GRUB_CMDLINE_LINUX="console=ttyS0"
GRUB_DISABLE_OS_PROBER=true
GRUB
mkdir -p "$root/boot/grub"
cp -r "$root/usr/lib/grub/i386-pc" "$root/boot/grub/"
chroot "$root" grub-mkimage --format i386-pc --output /boot/grub/i386-pc/core.img --prefix '(hd0,msdos1)/boot/grub' biosdisk part_msdos ext2
kernel=$(basename "$(ls "$root"/boot/vmlinuz-*)")
# update-grub, which a role may run in the machine, replaces this file.
cat > "$root/boot/grub/grub.cfg" << GRUB
linux /boot/$kernel root=/dev/vda1 ro console=ttyS0
initrd /boot/initrd.img-${kernel#vmlinuz-}
boot
GRUB

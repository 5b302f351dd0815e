#!/bin/sh
# Turn the packages in the folder $1 into a node of a cluster: run by mmdebstrap as its customize hook.
# Also gathers, into /opt/roots/<image>, what the images of programs with libraries consist of.
set -eu
root=$1
here=$(dirname "$(readlink -f "$0")")

tar --directory "$here/node" --create --owner=0 --group=0 . | tar --directory "$root" --extract --keep-directory-symlink
for program in kubelet kubeadm kubectl; do ln -s "/opt/kubernetes/$program" "$root/usr/bin/$program"; done
: > "$root/etc/machine-id"
printf 'nameserver 127.0.0.1\n' > "$root/etc/resolv.conf"
chroot "$root" systemctl --quiet enable containerd kubelet own-cgroups
chroot "$root" systemctl --quiet mask etcd getty@tty1 console-getty

# gather IMAGE PROGRAM...: each with the libraries that it is linked with
gather() {
    chroot "$root" sh -eu -s "$@" << 'INSIDE'
target=/opt/roots/$1
shift
mkdir -p "$target/tmp" "$target/etc" "$target/run"
chmod 1777 "$target/tmp"
for program; do
    { echo "$program"; ldd "$program" | grep -o '/[^ ]*'; } | while read -r file; do
        mkdir -p "$target$(dirname "$file")"
        cp --dereference "$file" "$target$file"
    done
done
INSIDE
}

gather etcd /usr/bin/etcd
modules=usr/lib/$(uname -m)-linux-gnu
# The match by which a service chooses among its pods needs more than the program itself.
gather kube-proxy /usr/sbin/xtables-nft-multi /usr/sbin/conntrack /usr/sbin/ipset "/$modules/xtables/libxt_statistic.so"
gather busybox /bin/busybox
# torch names libraries that are a part of the C library by now.
chroot "$root" sh -c 'cd /lib/*-linux-gnu && echo /usr/bin/python3.11 /usr/lib/python3.11/lib-dynload/*.so \
    "$PWD"/libstdc++.so.6 "$PWD"/libdl.so.2 "$PWD"/libpthread.so.0 "$PWD"/librt.so.1' > "$root/python"
# shellcheck disable=SC2046 # a word each
gather python $(cat "$root/python")
rm "$root/python"
cp -r "$root/usr/lib/python3.11" "$root/opt/roots/python/usr/lib/"
ln -s python3.11 "$root/opt/roots/python/usr/bin/python3"
cp -r "$root/$modules/xtables" "$root/opt/roots/kube-proxy/$modules/"
cp "$root/etc/protocols" "$root/opt/roots/kube-proxy/etc/"
for name in iptables iptables-save iptables-restore ip6tables ip6tables-save ip6tables-restore; do
    ln -s xtables-nft-multi "$root/opt/roots/kube-proxy/usr/sbin/$name"
done
for name in $(chroot "$root" busybox --list); do
    [ "$name" = busybox ] || ln -s busybox "$root/opt/roots/busybox/bin/$name"
done
# Each node makes its own.
rm -f "$root"/etc/ssh/ssh_host_*
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/cache/apt/archives/*.deb "$root"/var/lib/apt/lists/*

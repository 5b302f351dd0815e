# Give the mount of unit $1 on $4 its settings where it runs with other ones: it noted the sums of its files in $2.
# A fresh process takes it over with its open files. Where that cannot be, the unit is restarted if nobody uses the mount: neither does program
# $3 see a container that does, nor does the kernel refuse to unmount it. Program $6 closes the trash, which is unmounted first.
# $5 is `look` where nothing may be changed, `interrupt` where open files may end.
if systemctl is-active --quiet "$1"; then
    if sha256sum --status --check "$2" 2> /dev/null; then exit 0; fi
    if [ "$5" = look ]; then echo stale; exit 0; fi
    if [ "$(systemctl show --property CanReload --value "$1")" = yes ] && timeout 240 systemctl reload "$1" \
        && sha256sum --status --check "$2" 2> /dev/null; then echo 'stale: taken over'; exit 0; fi
    users=$(timeout 60 python3 -I -B "$3" "$4")
    if [ "$5" != interrupt ] && { [ -n "$users" ] || ! timeout 60 umount --recursive "$4"; }; then
        sh "$6" "$4" > /dev/null
        echo "kept as it is for ${users:-programs that use it}"
        exit 0
    fi
fi
echo stale
[ "$5" != look ] || exit 0
systemctl reset-failed "$1" 2> /dev/null
systemctl restart "$1" && exit 0
journalctl --unit "$1" --lines 8 --no-pager --output cat >&2
exit 1

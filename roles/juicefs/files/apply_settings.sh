# Apply changed settings to the mount of unit $1 on $4. The unit recorded the checksums of its files in $2.
# A new process takes over the mount with its open files. If that is not possible, the unit is restarted, but only if nobody uses the mount:
# program $3 finds no user, and the kernel allows the unmount. Program $6 restricts the trash again, which is unmounted first.
# With $5 = look, change nothing. With $5 = interrupt, restart the unit even if files are open.
if systemctl is-active --quiet "$1"; then
    if sha256sum --status --check "$2" 2> /dev/null; then exit 0; fi
    if [ "$5" = look ]; then echo stale; exit 0; fi
    if [ "$(systemctl show --property CanReload --value "$1")" = yes ] && timeout 240 systemctl reload "$1" \
        && sha256sum --status --check "$2" 2> /dev/null; then echo 'stale: taken over'; exit 0; fi
    users=$(timeout 60 python3 -I -B "$3" "$4")
    if [ "$5" != interrupt ] && { [ -n "$users" ] || ! timeout 60 umount --recursive "$4"; }; then
        sh "$6" "$4" > /dev/null
        echo "kept with its old settings for ${users:-programs that use it}"
        exit 0
    fi
fi
echo stale
[ "$5" != look ] || exit 0
systemctl reset-failed "$1" 2> /dev/null
systemctl restart "$1" && exit 0
journalctl --unit "$1" --lines 8 --no-pager --output cat >&2
exit 1

# Have sshd read its files again where it has not been told of this one: a run that was killed in between is finished by the next.
file=/etc/ssh/sshd_config.d/05-primus-juicefs-store.conf
told=/etc/ssh/.primus-juicefs-store.told
sum=$(sha256sum "$file" 2> /dev/null)
[ "$sum" != "$(cat "$told" 2> /dev/null)" ] || exit 0
echo stale
[ "$1" != look ] || exit 0
sshd -t && { systemctl reload ssh 2> /dev/null || systemctl reload sshd; } && echo "$sum" > "$told"

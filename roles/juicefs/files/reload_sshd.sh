# Reload sshd if its configuration changed since the last reload. The record of the checksum makes a run that was killed in between be completed
# by the next one. With $1 = look, change nothing.
file=/etc/ssh/sshd_config.d/05-primus-juicefs-store.conf
record=/etc/ssh/.primus-juicefs-store.told
sum=$(sha256sum "$file" 2> /dev/null)
[ "$sum" != "$(cat "$record" 2> /dev/null)" ] || exit 0
echo stale
[ "$1" != look ] || exit 0
sshd -t && { systemctl reload ssh 2> /dev/null || systemctl reload sshd; } && echo "$sum" > "$record"

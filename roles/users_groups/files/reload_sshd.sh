# Reload sshd where it has not read file $1 as it is now, or its absence; what it has read is noted in $2. $3 is `look` where nothing may be
# changed. A run that was killed in between is finished by the next one.
sum=$(sha256sum "$1" 2> /dev/null)
[ "$sum" != "$(cat "$2" 2> /dev/null)" ] || exit 0
echo stale
[ "$3" != look ] || exit 0
sshd -t && { systemctl reload ssh 2> /dev/null || systemctl reload sshd; } && echo "$sum" > "$2"

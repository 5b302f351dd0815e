# Usage: reload_sshd.sh CONFIG APPLIED apply|check
# Reload sshd if CONFIG changed, appeared or disappeared since the last reload; its checksum of that time is in APPLIED. `check` changes nothing.
# After an interrupted run the checksum differs, so the next run reloads sshd.
sum=$(sha256sum "$1" 2> /dev/null)
[ "$sum" != "$(cat "$2" 2> /dev/null)" ] || exit 0
echo outdated
[ "$3" != check ] || exit 0
sshd -t && { systemctl reload ssh 2> /dev/null || systemctl reload sshd; } && echo "$sum" > "$2"

# Restart unit $1 if it does not run, or runs with other files than those that are there: at its start it noted their sums in $2.
# $3 is `look` where nothing may be changed. A run that was killed between writing and restarting is finished by the next one.
if systemctl is-active --quiet "$1" && sha256sum --status --check "$2" 2> /dev/null; then exit 0; fi
echo stale
[ "$3" != look ] || exit 0
systemctl reset-failed "$1" 2> /dev/null
systemctl restart "$1" && exit 0
journalctl --unit "$1" --lines 8 --no-pager --output cat >&2
exit 1

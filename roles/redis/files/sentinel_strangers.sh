# Set `stale`, so that restart_if_changed.sh restarts the sentinel, if its state file $8 has hosts of the group $9 that are not in ${11} (separated
# by commas). Its files are unchanged if a host joined and left without an apply in between. While it counts that host, fewer others may fail.
pattern=$(echo "${11}" | sed 's/[.]/[.]/g; s/,/|/g')
stale=$(grep -E "^sentinel known-(replica|sentinel) $9 " "$8" 2> /dev/null | grep -vE "^sentinel known-[a-z]+ $9 ($pattern) ")

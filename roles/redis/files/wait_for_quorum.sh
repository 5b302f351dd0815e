# Wait until the sentinel of this host sees enough others for a failover, at most $7 s: the next one must not restart before. $6 has options of
# redis-cli, $8 the state file of the sentinel, $9 its name of the group, ${10} the file with the password. At the first start there are no others yet.
# If hosts of the group are down, there may be no quorum; the verification reports that.
[ $? = 0 ] || exit 1 # it did not start
grep -q "^sentinel known-sentinel $9 " "$8" 2> /dev/null || exit 0
set -a; . "${10}"; set +a
tries=$7
# shellcheck disable=SC2086 # several options
until redis-cli --no-auth-warning $6 SENTINEL CKQUORUM "$9" 2> /dev/null < /dev/null | grep -q '^OK '; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || { echo "after $7 s, the sentinel of this host does not see enough others for a failover" >&2; break; }
    sleep 1
done

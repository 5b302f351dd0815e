# Wait until this host is the primary, or a replica in sync, at most $7 seconds: the next host must not restart before. Options of redis-cli: $6.
set -a; . /etc/redis/client.env; set +a
tries=$7
# shellcheck disable=SC2086 # several options
until redis-cli --no-auth-warning $6 INFO replication 2> /dev/null | grep -qE '^(role:master|master_link_status:up)'; do
    tries=$((tries - 1))
    if [ "$tries" -le 0 ]; then
        echo "Redis runs, and is not in sync with the primary after $7 s. Fix: see \`INFO replication\` on this host, then run the same again" >&2
        exit 1
    fi
    sleep 1
done

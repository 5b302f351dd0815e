# await UNIT SECONDS: wait until a start of UNIT has loaded its data. For scripts that this goes before; systemd itself waits for ever.
# Redis loads all it holds into memory before it serves, some GiB a minute. A start that ended is told from one that goes on.
shown() { systemctl show --property=ActiveState --property=SubState "$1" | paste -sd' ' -; }
await() {
    ended=0 tries=$(($2 * 2))
    while [ "$tries" -gt 0 ]; do
        case $(shown "$1") in
            *ActiveState=active*) return 0 ;;
            # Between the stop and the start of a restart it is inactive for a moment.
            *ActiveState=failed* | *ActiveState=inactive* | *SubState=auto-restart*) ended=$((ended + 1)) ;;
            *) ended=0 ;;
        esac
        [ "$ended" -lt 3 ] || break
        sleep 0.5
        tries=$((tries - 1))
    done
    if [ "$tries" = 0 ]; then
        echo "Redis still loads its data after $2 s, and goes on. Fix: wait until \`redis-cli INFO persistence\` says loading:0, then the same again; no restart, which would begin from the beginning. redis_start_wait_s waits longer." >&2
    else
        journalctl --unit "$1" --lines 8 --no-pager --output cat >&2
    fi
    return 1
}

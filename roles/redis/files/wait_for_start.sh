# Functions for the scripts that are appended to this one. `wait_for_start UNIT SECONDS` waits until UNIT has loaded its data.
# Redis loads its data into memory before it serves, some GiB per minute. systemd itself waits without a limit.
unit_state() { systemctl show --property=ActiveState --property=SubState "$1" | paste -sd' ' -; }
wait_for_start() {
    ended=0 tries=$(($2 * 2))
    while [ "$tries" -gt 0 ]; do
        case $(unit_state "$1") in
            *ActiveState=active*) return 0 ;;
            # During a restart the unit is inactive for a moment, so only three such states in a row count.
            *ActiveState=failed* | *ActiveState=inactive* | *SubState=auto-restart*) ended=$((ended + 1)) ;;
            *) ended=0 ;;
        esac
        [ "$ended" -lt 3 ] || break
        sleep 0.5
        tries=$((tries - 1))
    done
    if [ "$tries" = 0 ]; then
        echo "Redis still loads its data after $2 s, and continues. Fix: wait until \`redis-cli INFO persistence\` shows loading:0, then run the same again; a restart would load from the beginning. A larger redis_start_wait_s waits longer." >&2
    else
        journalctl --unit "$1" --lines 8 --no-pager --output cat >&2
    fi
    return 1
}

#!/bin/sh
# Slurm's TaskProlog: give the task the variables of the node's GPU profile (role gpu_env). What the job has set itself stays.
# slurmd reads lines `export NAME=VALUE`, unquoted. The files are what systemd and sh read alike; a later one wins.
merged() { env -i /bin/sh -ac 'set -- /etc/primus/env.d/*.env; while [ $# -gt 0 ]; do [ ! -r "$1" ] || . "$1"; shift; done; exec env'; }

merged | while IFS= read -r line; do
    name=${line%%=*}
    case $name in
        PWD | OLDPWD | SHLVL | _ | '' | [0-9]* | *[!A-Za-z0-9_]*) continue ;;
    esac
    eval "[ -n \"\${$name+set}\" ]" || printf 'export %s\n' "$line"
done
exit 0

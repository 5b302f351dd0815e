#!/bin/sh
# Slurm's TaskProlog: print the variables of the GPU profile of the node (role gpu_env) for the task, except those that the job sets itself.
# slurmd reads lines `export NAME=VALUE` without quotes. The files have the common syntax of systemd and sh; later files win.
merged() { env -i /bin/sh -ac 'set -- /etc/primus/env.d/*.env; while [ $# -gt 0 ]; do [ ! -r "$1" ] || . "$1"; shift; done; exec env'; }

merged | while IFS= read -r line; do
    name=${line%%=*}
    case $name in
        PWD | OLDPWD | SHLVL | _ | '' | [0-9]* | *[!A-Za-z0-9_]*) continue ;;
    esac
    eval "[ -n \"\${$name+set}\" ]" || printf 'export %s\n' "$line"
done
exit 0

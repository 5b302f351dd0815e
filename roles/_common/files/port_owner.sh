# Print the programs that listen on port $1, except the main processes of the units $2... Nothing is printed if the port is free or ours.
port=$1
shift
ours=$(for unit in "$@"; do systemctl show --property MainPID --value "$unit" 2> /dev/null; done | sed 's/^/pid=/' | paste -sd' ' -)
ss -Hltnp "sport = :$port" | sed -n 's/.*users:((\(.*\)))$/\1/p' | tr -d '"' | sed 's/),(/\n/g' \
    | awk -F, -v ours=" $ours " 'index(ours, " " $2 " ") == 0 {print $1 " (" $2 ")"}' | sort -u | paste -sd' ' -

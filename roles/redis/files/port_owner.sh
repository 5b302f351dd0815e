# Print the programs that listen on port $1 and are not the main process of unit $2; nothing where the port is free or ours.
main=$(systemctl show --property MainPID --value "$2" 2> /dev/null)
ss -Hltnp "sport = :$1" | sed -n 's/.*users:((\(.*\)))$/\1/p' | tr -d '"' | sed 's/),(/\n/g' \
    | awk -F, -v ours="pid=${main:-none}" '$2 != ours {print $1 " (" $2 ")"}' | sort -u | paste -sd' ' -

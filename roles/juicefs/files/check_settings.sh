# Print a verdict on whether the mount $4 of host $1 was started with the current files, whose checksums are in $2. $3 lists its users.
verdict=pass found=current reason= fix=
if ! sha256sum --status --check "$2" 2> /dev/null; then
    verdict=fail found=old
    users=$(timeout 60 python3 -I -B "$3" "$4" | tr -d '"\\' | tr -d '[:cntrl:]')
    reason="the mount uses old settings: a restart would close open files${users:+ of $users}"
    fix='when the job on this host is over: primus-bootstrap apply hosts.yaml --phase storage'
fi
cat << EOF
{"verdicts": [{"check": "juicefs.settings", "host": "$1", "verdict": "$verdict", "expected": "current", "found": "$found", "reason": "$reason",
 "fix": "$fix", "source": "roles/juicefs", "schema": "primus.verdict/1"}]}
EOF
[ "$verdict" = pass ] || { echo "juicefs.settings: $reason. Fix: $fix" >&2; exit 1; }

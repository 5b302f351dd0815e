# Print a verdict on whether the mount $4 of host $1 runs with the files whose sums it noted in $2; $3 names who uses it.
verdict=pass found=stated reason= fix=
if ! sha256sum --status --check "$2" 2> /dev/null; then
    verdict=fail found=former
    users=$(timeout 60 python3 -I -B "$3" "$4" | tr -d '"\\' | tr -d '[:cntrl:]')
    reason="the mount runs with former settings: a restart would end files that are open${users:+ in $users}"
    fix='when the job on this host is over: primus-bootstrap apply hosts.yaml --phase storage'
fi
cat << EOF
{"verdicts": [{"check": "juicefs.settings", "host": "$1", "verdict": "$verdict", "expected": "stated", "found": "$found", "reason": "$reason",
 "fix": "$fix", "source": "roles/juicefs", "schema": "primus.verdict/1"}]}
EOF
[ "$verdict" = pass ] || { echo "juicefs.settings: $reason. Fix: $fix" >&2; exit 1; }

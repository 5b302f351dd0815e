# Restore dump $3 (empty: the newest of folder $4) as database $2 while unit $1 is stopped. The former data are dumped beside the backups first.
set -eu
unit=$1 database=$2 file=$3 backups=$4
fail() { echo "$1. Fix: $2" >&2; exit 1; }

[ -n "$file" ] || file=$(ls -1 "$backups"/dump-*.sql.gz 2> /dev/null | sort | tail -n 1)
[ -n "$file" ] && [ -f "$file" ] || fail "there is no backup ${file:-in $backups}" "name one with slurm_accounting_restore_file"
gzip -t "$file" && gzip -dc "$file" | tail -n 1 | grep -q '^-- Dump completed' ||
    fail "$file is damaged" "restore an older backup with slurm_accounting_restore_file"

age_h=$((($(date +%s) - $(stat -c %Y "$file")) / 3600))

umask 077
aside=$backups/before-restore-$(date -u +%Y%m%dT%H%M%SZ).sql.gz
backup=primus-slurm-accounting-backup
# slurmdbd fills in whatever it misses: on half a database it must not start.
whole=yes
trap 'rm -f "$aside.new" "$aside.new.gz"; [ $whole = no ] || systemctl start "$unit"; systemctl start $backup.timer' EXIT
# A backup of the moment in between would be the newest, and empty.
systemctl stop $backup.timer $backup.service "$unit"
# A run that was cut off may have left none.
mariadb -e "CREATE DATABASE IF NOT EXISTS \`$database\`"
mariadb-dump --single-transaction --quick --routines "$database" > "$aside.new"
gzip "$aside.new"
mv "$aside.new.gz" "$aside"
# Restored beside the database first: one that does not load leaves the database as it is.
mariadb -e "DROP DATABASE IF EXISTS \`$database.restore\`; CREATE DATABASE \`$database.restore\`"
gzip -dc "$file" | mariadb "$database.restore" || fail "$file does not load" "restore an older backup with slurm_accounting_restore_file"
whole=no
mariadb -e "DROP DATABASE \`$database.restore\`; DROP DATABASE \`$database\`; CREATE DATABASE \`$database\`"
gzip -dc "$file" | mariadb "$database" || fail "$file did not load as a whole, and $unit stays stopped; the former data are in $aside" \
    "see \`df -h /var/lib/mysql\` and \`journalctl -u mariadb -n 30\`, then restore again, or with slurm_accounting_restore_file=$aside"
whole=yes
echo "restored $file, which is $age_h hours old"
echo "the former data are in $aside"

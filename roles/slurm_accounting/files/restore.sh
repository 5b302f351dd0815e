# Restore a dump while slurmdbd is stopped. The current data are dumped beside the backups first.
#   restore.sh UNIT DATABASE DUMP BACKUP_DIR
# An empty DUMP means the newest of BACKUP_DIR.
set -eu
unit=$1 database=$2 file=$3 backups=$4
fail() { echo "$1. Fix: $2" >&2; exit 1; }

[ -n "$file" ] || file=$(ls -1 "$backups"/dump-*.sql.gz 2> /dev/null | sort | tail -n 1)
[ -n "$file" ] && [ -f "$file" ] || fail "there is no backup ${file:-in $backups}" "set slurm_accounting_restore_file to an existing backup"
gzip -t "$file" && gzip -dc "$file" | tail -n 1 | grep -q '^-- Dump completed' ||
    fail "$file is damaged" "set slurm_accounting_restore_file to an older backup"

age_h=$((($(date +%s) - $(stat -c %Y "$file")) / 3600))

umask 077
aside=$backups/before-restore-$(date -u +%Y%m%dT%H%M%SZ).sql.gz
backup=primus-slurm-accounting-backup
# slurmdbd creates missing tables, so it must not start with an incomplete database.
complete=yes
trap 'rm -f "$aside.new" "$aside.new.gz"; [ $complete = no ] || systemctl start "$unit"; systemctl start $backup.timer' EXIT
# A backup during the restore would be the newest one, and empty.
systemctl stop $backup.timer $backup.service "$unit"
# An interrupted run may have left no database.
mariadb -e "CREATE DATABASE IF NOT EXISTS \`$database\`"
mariadb-dump --single-transaction --quick --routines "$database" > "$aside.new"
gzip "$aside.new"
mv "$aside.new.gz" "$aside"
# First restore into another database: a dump that does not load must not change the current one.
mariadb -e "DROP DATABASE IF EXISTS \`$database.restore\`; CREATE DATABASE \`$database.restore\`"
gzip -dc "$file" | mariadb "$database.restore" || fail "$file does not load" "set slurm_accounting_restore_file to an older backup"
complete=no
mariadb -e "DROP DATABASE \`$database.restore\`; DROP DATABASE \`$database\`; CREATE DATABASE \`$database\`"
gzip -dc "$file" | mariadb "$database" || fail "$file did not load completely, and $unit stays stopped; the former data are in $aside" \
    "see \`df -h /var/lib/mysql\` and \`journalctl -u mariadb -n 30\`, then restore again, or with slurm_accounting_restore_file=$aside"
complete=yes
echo "restored $file, which is $age_h hours old"
echo "the former data are in $aside"

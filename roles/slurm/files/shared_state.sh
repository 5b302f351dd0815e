# Have folder $1/slurmctld on a file system that the controllers share, slurm's own. $2 is `look` where nothing may be changed.
set -eu
folder=$1
top=$folder
while [ ! -d "$top" ]; do top=$(dirname "$top"); done
if [ "$(stat -c %m "$top")" = / ]; then
    echo "$folder is on this host's own disk, or its file system is not mounted. Fix: mount it (group juicefs_client), or name another slurm_shared_state_dir." >&2
    exit 1
fi
owner=$(stat -c %U:%a "$folder/slurmctld" 2> /dev/null || echo none)
[ "$owner" != slurm:700 ] || exit 0
echo made
[ "$2" != look ] || exit 0
mkdir -p -m 0755 "$folder"
install -d -o slurm -g slurm -m 0700 "$folder/slurmctld"

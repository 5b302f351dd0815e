# Have folder $1/slurmctld on a file system that the controllers share, slurm's own. $2 is `look` where nothing may be changed.
set -eu
folder=$1
top=$folder
while [ ! -d "$top" ]; do top=$(dirname "$top"); done
if [ "$(stat -c %m "$top")" = / ]; then
    echo "$folder is on this host's own disk, or its file system is not mounted. Fix: mount it (group juicefs_client), or name another slurm_shared_state_dir." >&2
    exit 1
fi
owner=$(stat -c %u:%a "$folder/slurmctld" 2> /dev/null || echo none)
[ "$owner" != "$(id -u slurm):700" ] || exit 0
# Taking it over would take it from the other controller: to whom account slurm has another number.
case $owner in
    none | 0:* | "$(id -u slurm)":*) ;;
    *)
        echo "$folder/slurmctld belongs to uid ${owner%:*}, and slurm is uid $(id -u slurm) here. Fix: give account slurm the same uid on both controllers (and on all hosts), or chown the folder where nobody uses it." >&2
        exit 1
        ;;
esac
echo made
[ "$2" != look ] || exit 0
mkdir -p -m 0755 "$folder"
install -d -o slurm -g slurm -m 0700 "$folder/slurmctld"

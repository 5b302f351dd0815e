# Create the folder FOLDER/slurmctld, owned by slurm, on a file system that the controllers share.
#   create_shared_state.sh FOLDER apply|check
# With `check` nothing is changed. Prints `changed` if something has to be done.
set -eu
folder=$1
existing=$folder
while [ ! -d "$existing" ]; do existing=$(dirname "$existing"); done
if [ "$(stat -c %m "$existing")" = / ]; then
    echo "$folder is on this host's own disk, or its file system is not mounted. Fix: mount it, or set slurm_shared_state_dir to a folder on a shared file system" >&2
    exit 1
fi
owner=$(stat -c %u:%a "$folder/slurmctld" 2> /dev/null || echo none)
[ "$owner" != "$(id -u slurm):700" ] || exit 0
# If the account slurm has another uid on the other controller, a chown would lock that controller out.
case $owner in
    none | 0:* | "$(id -u slurm)":*) ;;
    *)
        echo "$folder/slurmctld belongs to uid ${owner%:*}, and slurm is uid $(id -u slurm) here. Fix: give the account slurm the same uid on both controllers (and on all hosts), or chown the folder if no controller uses it" >&2
        exit 1
        ;;
esac
echo changed
[ "$2" != check ] || exit 0
mkdir -p -m 0755 "$folder"
install -d -o slurm -g slurm -m 0700 "$folder/slurmctld"

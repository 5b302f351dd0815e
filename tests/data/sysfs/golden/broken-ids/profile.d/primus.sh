# Written by primus-bootstrap (role gpu_env); edits are overwritten. Own values: gpu_env_site in hosts.yaml.
# A variable that the environment already has keeps its value: the user's own choice wins.
[ -n "${GLOO_SOCKET_IFNAME+set}" ] || export GLOO_SOCKET_IFNAME='eth0'
[ -n "${NCCL_DEBUG+set}" ] || export NCCL_DEBUG='WARN'
[ -n "${NCCL_IB_TC+set}" ] || export NCCL_IB_TC='106'
[ -n "${NCCL_SOCKET_IFNAME+set}" ] || export NCCL_SOCKET_IFNAME='=eth0'
[ -n "${TORCH_NCCL_DUMP_ON_TIMEOUT+set}" ] || export TORCH_NCCL_DUMP_ON_TIMEOUT='1'
[ -n "${TORCH_NCCL_TRACE_BUFFER_SIZE+set}" ] || export TORCH_NCCL_TRACE_BUFFER_SIZE='2000'

# Written by primus-bootstrap (role gpu_env); edits are overwritten. To set variables, use gpu_env_site in hosts.yaml.
# Variables that are already set keep their values, so that users can override them.
[ -n "${GLOO_SOCKET_IFNAME+set}" ] || export GLOO_SOCKET_IFNAME='eth0'
[ -n "${GPU_MAX_HW_QUEUES+set}" ] || export GPU_MAX_HW_QUEUES='2'
[ -n "${NCCL_DEBUG+set}" ] || export NCCL_DEBUG='WARN'
[ -n "${NCCL_IB_TC+set}" ] || export NCCL_IB_TC='106'
[ -n "${NCCL_SOCKET_IFNAME+set}" ] || export NCCL_SOCKET_IFNAME='=eth0'
[ -n "${TORCH_NCCL_DUMP_ON_TIMEOUT+set}" ] || export TORCH_NCCL_DUMP_ON_TIMEOUT='1'
[ -n "${TORCH_NCCL_HIGH_PRIORITY+set}" ] || export TORCH_NCCL_HIGH_PRIORITY='1'
[ -n "${TORCH_NCCL_TRACE_BUFFER_SIZE+set}" ] || export TORCH_NCCL_TRACE_BUFFER_SIZE='2000'

# Written by primus-bootstrap (role gpu_env); edits are overwritten. To set variables, use gpu_env_site in hosts.yaml.
# Variables that are already set keep their values, so that users can override them.
[ -n "${GLOO_SOCKET_IFNAME+set}" ] || export GLOO_SOCKET_IFNAME='eno1'
[ -n "${NCCL_DEBUG+set}" ] || export NCCL_DEBUG='WARN'
[ -n "${NCCL_IB_HCA+set}" ] || export NCCL_IB_HCA='=mlx5_0:1,mlx5_1:1,mlx5_2:1,mlx5_3:1,mlx5_10:1,mlx5_11:1,mlx5_12:1,mlx5_13:1'
[ -n "${NCCL_IB_TC+set}" ] || export NCCL_IB_TC='106'
[ -n "${NCCL_SOCKET_IFNAME+set}" ] || export NCCL_SOCKET_IFNAME='=eno1'
[ -n "${TORCH_NCCL_DUMP_ON_TIMEOUT+set}" ] || export TORCH_NCCL_DUMP_ON_TIMEOUT='1'
[ -n "${TORCH_NCCL_TRACE_BUFFER_SIZE+set}" ] || export TORCH_NCCL_TRACE_BUFFER_SIZE='2000'

#!/bin/bash
# Run on every node, with the same arguments: ./by-hand.sh HEAD script.py
# HEAD is a name or address of one of the nodes, by which the others reach it.
set -euo pipefail

HEAD=${1:?the head node}
SCRIPT=${2:?the script}
NNODES=${NNODES:-2}
RANKS_PER_NODE=${RANKS_PER_NODE:-4}  # the same on every node; on GPUs at most one rank each

# If preflight says so: the interface by which the nodes reach each other.
# export GLOO_SOCKET_IFNAME=eth0 NCCL_SOCKET_IFNAME=eth0

python -m shardlab preflight --nnodes "$NNODES" --endpoint "$HEAD:29400"
torchrun \
    --nnodes="$NNODES" \
    --nproc-per-node="$RANKS_PER_NODE" \
    --rdzv-id=shardlab \
    --rdzv-backend=c10d \
    --rdzv-endpoint="$HEAD:29400" \
    "$SCRIPT"

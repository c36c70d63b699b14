#!/usr/bin/env bash
# Run a recipe in 16 shards under SLURM, one GPU each:
#
#   sbatch examples/slurm_array.sh targeted-instant
#   sbatch --array=3,7 examples/slurm_array.sh targeted-instant   # again those that were stopped: they continue
#   medbn merge medbn-*-of-16.db                                  # when all are done: writes medbn.db
#
#SBATCH --job-name=medbn
#SBATCH --array=1-16
#SBATCH --gpus=1
#SBATCH --cpus-per-task=4
#SBATCH --time=04:00:00
#SBATCH --requeue
set -euo pipefail
shards=${SHARDS:-16} # as many as --array has; SLURM's own count is smaller where some are run again
exec medbn run "$@" --shard "$SLURM_ARRAY_TASK_ID/$shards" --threads "${SLURM_CPUS_PER_TASK:-1}" --quiet

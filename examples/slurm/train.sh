#!/bin/bash
# Trains on one rank per node; submitted or started again, it goes on from the last checkpoint.
#
#     sbatch --nodes=4 train.sh DATA RUN [options of dslide train]
#
# Change what follows for your cluster. `srun --mpi=list` prints what MPI can be: pmi2 goes with MPICH, which
# `pip install 'dslide[mpi]'` brings, and with Intel MPI; pmix with Open MPI.
#SBATCH --job-name=dslide
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --mem=32G
#SBATCH --time=04:00:00
#SBATCH --signal=TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
MPI=${MPI:-pmi2}

if [ $# -lt 2 ]; then
  echo "train.sh: expected DATA and RUN, and options of dslide train" >&2
  exit 2
fi
data=$1 run=$2
shift 2
latest() { cat "$run/checkpoints/latest" 2> /dev/null; }  # the name of the newest checkpoint
before=$(latest)

# Ranks that lose another one end by themselves, with an exit code that says why; srun would kill them before they can.
# Codes that are not dslide's come from MPI, which at times fails to start: another try.
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK OMP_NUM_THREADS=$SLURM_CPUS_PER_TASK
for try in 1 2 3; do
  srun --mpi="$MPI" --nodes="$SLURM_JOB_NUM_NODES" --ntasks="$SLURM_JOB_NUM_NODES" --kill-on-bad-exit=0 --wait=120 \
    dslide train "$data" --out "$run" --resume-existing "$@"
  code=$?
  case $code in
    [0-4] | 130 | 137 | 143) break ;;
  esac
  echo "train.sh: exit code $code in try $try of 3" >&2
done

# Start again what SIGTERM has stopped (143: the time limit, or another job), or a lost rank (4, 137), if it got further
# since it was started. `scancel --signal=INT` ends a job for good (130), and so do errors (1, 2, 3).
case $code in
  4 | 137 | 143)
    if [ "$(latest)" != "$before" ]; then
      scontrol requeue "$SLURM_JOB_ID"
    fi
    ;;
esac
exit $code

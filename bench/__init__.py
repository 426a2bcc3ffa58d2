"""Benchmarks.

python -m bench                        one machine: speed, memory, accuracy, prediction, reading
python -m bench.single.checkpoints     cost of checkpoints
python -m bench.cluster EXPERIMENT     emulated clusters
python -m bench.cluster.soak           faults in an elastic run
python -m bench.accuracy DATA_FOLDER   accuracy of defaults, recipes and peers on data sets
pytest bench/micro --benchmark-only    kernels
"""

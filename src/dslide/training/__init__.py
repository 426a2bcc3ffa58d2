"""Training: the loop, schedules, callbacks, whole runs, metrics, profiling, logs."""

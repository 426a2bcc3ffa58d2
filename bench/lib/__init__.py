"""What all benchmarks share: systems in processes of their own, rounds, workloads, reports and charts."""

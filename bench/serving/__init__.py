"""What predictions cost, beside other systems: python -m bench.serving RUN TEST."""

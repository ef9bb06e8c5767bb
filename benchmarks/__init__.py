"""Our figures beside the peers', measured in one run: `python -m benchmarks` or `python -m benchmarks.NAME`."""

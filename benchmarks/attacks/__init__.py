"""What `benchmarks/reliability.py` does to the program: one module for each kind of attack."""

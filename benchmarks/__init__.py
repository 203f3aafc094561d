"""Speed, accuracy and energy measured by scripts that print tables: `python -m benchmarks.<name>`."""

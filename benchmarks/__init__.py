"""Speed, memory and bytes, measured by scripts that print tables: `python -m benchmarks.<name>`."""

"""Reports: a diagnosis as text, one output format a file."""

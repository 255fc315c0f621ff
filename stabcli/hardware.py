"""Hardware: peak FLOP/s of accelerators, each with where the figure comes from."""

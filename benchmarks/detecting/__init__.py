"""What the benchmark of detection is made of: runs, faults, detectors, measures."""

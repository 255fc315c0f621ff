"""What the benchmark of readers is made of: a module a kind of log, and the clock."""

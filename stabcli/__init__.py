"""Post-mortems of training runs: read a log, find the incidents, price them, say what to do."""

__version__ = "0.1.0"

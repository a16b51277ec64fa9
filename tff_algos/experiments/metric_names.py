"""Names of columns of metrics.csv that several modules use."""

ROUND = "round"
SECONDS = "seconds"
# What clients and server sent each other in a round, over all its clients.
BYTES_DOWN, BYTES_UP = "bytes_down", "bytes_up"
# What this process exchanged with those where clients ran.
WORKERS_DOWN, WORKERS_UP = "bytes_to_workers", "bytes_from_workers"
EPSILON = "epsilon"

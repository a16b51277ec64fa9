"""Runs a federated learning algorithm on a task.

python main.py --algo=personalized_fedavg --task=emnist   runs and reports
python main.py --list                                     algorithms and tasks
python main.py --list --algo=gradma --task=mnist          flags of both, and defaults
python main.py compare --help                             comparisons

Defaults depend on the algorithm and the task.
"""

import os
import signal
import sys

if __name__ == "__main__":
    # Even light imports take a moment, and there is nothing to clean up yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

try:
    from tff_algos.experiments import cli
except ImportError as error:
    sys.exit(f"error: {error}")

if __name__ == "__main__":
    cli.main()

"""Runs a federated learning algorithm on a task: `tff_algos.experiments.cli`.

python main.py --algo=personalized_fedavg --task=emnist
python main.py --list
"""

import os
import signal
import sys

if __name__ == "__main__":
    # TensorFlow takes seconds to import, and there is nothing to clean up yet.
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))

# Read when TensorFlow is imported; its C++ side logs to the console otherwise.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

try:
    from tff_algos.experiments import cli
except ImportError as error:
    sys.exit(f"error: {error}")

if __name__ == "__main__":
    cli.main()

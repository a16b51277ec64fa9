"""What a run is: recipes by name, the runner, evaluation, results and plots.

    from tff_algos import experiments

    result = experiments.run("gradma", "mnist", total_rounds=20, memory_decay=0.3)

The command line (`experiments.cli`) is one caller of it.
"""

from typing import TYPE_CHECKING

from tff_algos import lazy

if TYPE_CHECKING:
    from tff_algos.experiments.public import *

__getattr__, __dir__ = lazy.attributes(__name__, "public")

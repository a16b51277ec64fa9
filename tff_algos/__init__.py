"""Federated learning algorithms for TensorFlow Federated.

Import this package before TensorFlow Federated: it makes TFF 0.87.0 run on current
TensorFlow and Python versions, without the log of TensorFlow's C++ code and in this
process (`tff_algos.compat`). The import is quick, because TensorFlow and the symbols of
`tff_algos.public` are imported when they are first needed.

Every `build_*` returns a `tff.learning.templates.LearningProcess` or, for an
algorithm with stages, a record of them; `build_personalization_eval` returns a
computation. Runs, with their data, results and plots, are in `tff_algos.experiments`,
which this package does not import.
"""

from typing import TYPE_CHECKING

from tff_algos import compat, lazy

if TYPE_CHECKING:
    from tff_algos.public import *

__version__ = "0.1.0"
__getattr__, __dir__ = lazy.attributes(__name__, "public")

compat.install()

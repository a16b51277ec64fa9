"""Client works: `tff.learning.templates.ClientWorkProcess`es.

Every process composes with TFF's own distributors, aggregators and finalizers, and
excludes invalid clients by the same policy (`client_report.report`). Clients that
remember, and models whose training changes statistics, such as batch normalization's,
need what `tff_algos.compose` adds. All take a `tff.learning.models.FunctionalModel`, or a
`tff_algos.models.BlockModel` where they need blocks or features; most also take a
no-argument function that returns a `tff.learning.models.VariableModel`.
"""

from tff_algos.client_works.afl_training import (
    AgnosticState,
    build_agnostic_training_client_work,
)
from tff_algos.client_works.apfl_training import build_mixture_client_work
from tff_algos.client_works.ditto_training import build_ditto_client_work
from tff_algos.client_works.fed_dyn_training import (
    build_dynamic_regularization_client_work,
)
from tff_algos.client_works.fed_mlb_training import (
    BranchLosses,
    build_multi_level_training_client_work,
)
from tff_algos.client_works.full_gradient import build_full_gradient_client_work
from tff_algos.client_works.gradma_training import (
    StepCorrection,
    build_gradma_training_client_work,
)
from tff_algos.client_works.local_training import (
    StepGradients,
    build_local_training_client_work,
    build_local_update,
)
from tff_algos.client_works.meta_gradient import (
    build_meta_gradient_client_work,
    epochs_then_all,
    steps_then_query,
)
from tff_algos.client_works.mime_lite_training import build_mime_lite_client_work
from tff_algos.client_works.moon_training import build_contrastive_training_client_work
from tff_algos.client_works.partly_personal_training import (
    Phase,
    build_partly_personal_client_work,
)
from tff_algos.client_works.pfedme_training import build_moreau_envelope_client_work
from tff_algos.client_works.pooled_training import build_pooled_training_client_work
from tff_algos.client_works.q_fed_avg_training import (
    build_loss_weighted_training_client_work,
)
from tff_algos.client_works.remembering_process import (
    RememberingState,
    build_remembering_process,
    undo_rejected_rounds,
)
from tff_algos.client_works.round_process import build_round_process
from tff_algos.client_works.scaffold_training import build_scaffold_client_work

__all__ = [
    "AgnosticState",
    "BranchLosses",
    "Phase",
    "RememberingState",
    "StepCorrection",
    "StepGradients",
    "build_agnostic_training_client_work",
    "build_contrastive_training_client_work",
    "build_ditto_client_work",
    "build_dynamic_regularization_client_work",
    "build_full_gradient_client_work",
    "build_gradma_training_client_work",
    "build_local_training_client_work",
    "build_local_update",
    "build_loss_weighted_training_client_work",
    "build_meta_gradient_client_work",
    "build_mime_lite_client_work",
    "build_mixture_client_work",
    "build_moreau_envelope_client_work",
    "build_multi_level_training_client_work",
    "build_partly_personal_client_work",
    "build_pooled_training_client_work",
    "build_remembering_process",
    "build_round_process",
    "build_scaffold_client_work",
    "epochs_then_all",
    "steps_then_query",
    "undo_rejected_rounds",
]

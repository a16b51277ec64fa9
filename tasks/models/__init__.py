"""Pure `tff.learning.models.FunctionalModel`s of the tasks."""

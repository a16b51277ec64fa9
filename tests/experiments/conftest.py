"""What tests of plots share."""

import pytest

from tff_algos.experiments import figures as figures_lib


@pytest.fixture
def figures(monkeypatch):
    """Figures instead of files, by name."""
    found = {}
    monkeypatch.setattr(
        figures_lib, "save", lambda figure, path: found.update({path.name: figure})
    )
    return found

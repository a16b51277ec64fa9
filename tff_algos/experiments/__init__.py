"""What a run is: recipes by name, the runner, evaluation, results and plots."""

"""The command line: `python -m tff_algos.experiments`."""

from tff_algos.experiments import cli

if __name__ == "__main__":
    cli.main()

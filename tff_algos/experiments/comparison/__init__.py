"""Several algorithms, settings and seeds in one table: `tff-algos compare`."""

"""Several algorithms, settings and seeds in one table: `main.py compare`."""

"""What tests share: small problems, tasks and models, references in NumPy, and tools."""

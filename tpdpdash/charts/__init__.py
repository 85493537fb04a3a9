"""Table → Altair chart, array → PNG, and the palette. Nothing else."""

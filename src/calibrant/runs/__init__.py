"""Run directories: folders, manifests, locks, row records, resume and rescue. Decodes rows and JSON, nothing else."""

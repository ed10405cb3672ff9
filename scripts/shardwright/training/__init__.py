"""Training: one run from an imported model and an indexed dataset to a checkpoint directory."""

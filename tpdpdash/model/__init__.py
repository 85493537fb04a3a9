"""What is trained: ModelSpec, Hugging Face config.json → ModelSpec, presets, parameter and FLOP counts."""

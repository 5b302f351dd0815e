"""The adapter of TRL and PEFT: post-training of models in the format of Hugging Face."""

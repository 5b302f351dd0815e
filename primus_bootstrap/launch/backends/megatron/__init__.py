"""The adapter of Megatron-LM: megatron-core, which contains megatron.training."""

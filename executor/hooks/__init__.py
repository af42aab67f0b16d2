"""Ways into training code: FSDP2 (`fsdp`), DDP (`ddp`), mixture of experts (`moe`), pipelines (`pipeline`)."""

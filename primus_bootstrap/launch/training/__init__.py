"""The task `train pretrain|posttrain`: settings, files and backends of a training run, checked before anything is started."""

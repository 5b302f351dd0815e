"""Programs that run on the nodes: primus-cli, hardware detection, node checks and the watcher. Python 3.9, standard library and PyYAML."""

"""Evaluate benchmark results, decide which hosts are quarantined, and write reports. Nothing here contacts a host.

lines = read_results(path, host="node1")              # lines of primus.result/1; lines.problems are verdicts
evaluation = evaluate_results(lines.results, floors=load_floors(), history=read_history(path), others=lines.problems)
evaluation.verdicts                                   # primus.verdict/1, one for each series and device
evaluation.hosts                                      # worst verdict of each host
evaluation.reruns                                     # benchmarks to run again; evaluate all results with rounds_done + 1
append_history(path, new_records(evaluation, fingerprints, time=now))
"""

"""Evaluate benchmark results, decide which hosts are quarantined, choose hosts for jobs, and write reports.

    lines = read_results(path, host="node1")
    evaluation = evaluate_results(lines.results, floors=load_floors(), history=read_history(path), others=lines.problems)
    append_history(path, new_records(evaluation, fingerprints, time=now))

`evaluation` has verdicts (`primus.verdict/1`), the worst verdict of each host, and the benchmarks to run again.
The role `bench` measures; its action plug-in runs `role_steps`.
"""

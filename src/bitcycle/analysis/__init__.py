"""`bitcycle cost`, and the statistics of runs.

training_spec.py  what to count: a model, recipe or YAML file by name
cost.py           `bitcycle cost`: the cost of a run before it; `--paper`: published costs
config_id.py      a hash of the settings that decide a result
statistics.py     means, paired differences, tests, Pareto front
numbers.py        numbers as text
"""

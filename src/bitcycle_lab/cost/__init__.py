"""`bitcycle cost`: the cost of a run before it, of several schedules, and as published."""

"""ALFWorld: household tasks in text. Two back ends, one Env."""

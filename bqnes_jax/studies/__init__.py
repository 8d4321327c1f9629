"""Studies of many ensembles: algorithms compared, and ensembles under dataset shift."""

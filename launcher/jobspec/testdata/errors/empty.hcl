# error: Missing block "job"

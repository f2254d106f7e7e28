job "demo" {
  provider "local" {}
  workers {
    count = 2
    cpus  = 4
  }
  run "ranks" {
    command        = "true"
    procs_per_node = "gpu" # error: Wrong value for "procs_per_node"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command        = "true"
    procs_per_node = "gpus" # error: Wrong type for "procs_per_node"
  }
}

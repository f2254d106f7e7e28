job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command        = "true"
    procs_per_node = 0 # error: Wrong value for "procs_per_node"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  limits {
    node_lease = "10s" # error: "node_lease" is not longer than "lost_after"
  }
}

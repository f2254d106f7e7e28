job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  elastic {
    lost_after = "10m" # error: "node_lease" is not longer than "lost_after"
  }
}

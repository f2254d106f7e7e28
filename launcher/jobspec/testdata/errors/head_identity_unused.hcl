job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  head {
    supervisor = "client"
    identity   = "launcher-head" # warning: "identity" of the head is not used
  }
}

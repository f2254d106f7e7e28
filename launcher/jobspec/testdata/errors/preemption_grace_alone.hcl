job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preemption {
    grace = "60s" # warning: "grace" without "signal" has no effect
  }
}

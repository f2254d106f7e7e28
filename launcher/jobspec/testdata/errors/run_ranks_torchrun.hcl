job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "torchrun train.py" # warning: run "ranks" starts torchrun
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  elastic {
    max_restarts = -1 # error: Wrong value for "max_restarts"
  }
}

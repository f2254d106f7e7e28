job "demo" {
  provider "local" {}
  workers { # error: The workers have no size
    market = "spot"
  }
  run "ranks" {
    command = "python train.py"
  }
}

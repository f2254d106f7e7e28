job "demo" {
  provider "local" {}
  workers { # error: The workers have no size
    count = null
  }
  run "ranks" {
    command = "python train.py"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = {
    "MY VAR" = 1 # error: Wrong variable name "MY VAR"
  }
}

variable { # error: Missing label of "variable"
  default = 1
}
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

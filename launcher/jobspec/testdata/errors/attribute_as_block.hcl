job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env { # error: "env" is an attribute
    A = "1"
  }
}

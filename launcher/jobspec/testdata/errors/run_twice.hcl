job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  run "torchrun" { # error: Only one "run" block is allowed
    command = "torchrun a.py"
  }
}

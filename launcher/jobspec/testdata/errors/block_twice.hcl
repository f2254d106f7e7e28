job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  head {}
  head { # error: Only one "head" block is allowed
    cpus = 4
  }
}

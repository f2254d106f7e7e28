job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  elastic {
    grow_every = "-1m" # error: Wrong value for "grow_every"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
    gpu   = [] # error: Wrong value for "gpu"
  }
  run "ranks" {
    command = "python train.py"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "torchrun" {
    command = "python train.py" # warning: run "torchrun" does not start torchrun
  }
}

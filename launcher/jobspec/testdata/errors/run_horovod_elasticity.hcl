job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "horovod" {
    command    = "python train.py"
    elasticity = "torchrun" # error: Wrong value for "elasticity"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
    gpu   = { V100 = 4 } # error: Wrong type for "gpu"
  }
  run "ranks" {
    command = "python train.py"
  }
}

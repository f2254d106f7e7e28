job "demo" {
  provider "local" {}
  workers {
    count = 2
    gpu   = [
      "4xV100",   # error: Wrong value for "gpu"
      "V100:0",   # error: Wrong value for "gpu"
      "V100 4",   # error: Wrong value for "gpu"
      "V100:4",
    ]
  }
  run "ranks" {
    command = "python train.py"
  }
}

job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  preflight {
    gpu = "yes" # error: Wrong type for "gpu"
  }
}

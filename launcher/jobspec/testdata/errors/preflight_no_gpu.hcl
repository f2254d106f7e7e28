job "demo" {
  provider "local" {}
  workers {
    count = 2
    cpus  = 4
  }
  run "ranks" {
    command = "python train.py"
  }
  preflight {
    gpu = true # error: Wrong value for "gpu"
  }
}

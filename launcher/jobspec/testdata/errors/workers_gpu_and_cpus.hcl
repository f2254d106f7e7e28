job "demo" {
  provider "local" {}
  workers {
    count = 2
    gpu   = "V100:4"
    cpus  = 8 # error: "cpus" and "gpu" exclude each other
  }
  run "ranks" {
    command = "python train.py"
  }
}

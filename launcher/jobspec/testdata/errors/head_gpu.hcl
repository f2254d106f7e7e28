job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  head {
    gpu = "V100:1" # error: Unknown attribute "gpu"
  }
}

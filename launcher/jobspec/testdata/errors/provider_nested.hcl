job "demo" {
  provider "aws" {
    workers {
      gpu = "V100:1" # error: Unknown attribute "gpu"
    }
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

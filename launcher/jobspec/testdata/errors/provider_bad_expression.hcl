job "demo" {
  provider "aws" {
    profile = prod # error: Unknown name "prod"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

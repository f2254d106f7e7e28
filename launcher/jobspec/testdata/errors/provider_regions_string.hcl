job "demo" {
  provider "aws" {
    regions = "us-east-1" # error: Wrong type for "regions"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

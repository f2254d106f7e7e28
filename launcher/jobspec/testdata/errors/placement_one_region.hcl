job "demo" {
  provider "aws" {
    regions = ["us-east-1"]
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  placement {
    relocate_after = "10m" # warning: "relocate_after" has nowhere to go
  }
}

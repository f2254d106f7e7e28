job "demo" {
  provider "aws" {
    regions = ["us-east-1",
    "us-east-1"] # error: Region "us-east-1" is named twice
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

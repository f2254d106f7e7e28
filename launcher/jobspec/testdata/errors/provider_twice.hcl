job "demo" {
  provider "aws" {
    regions = ["us-east-1"]
  }
  provider "aws" { # error: Provider "aws" is named twice
    regions = ["us-west-2"]
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

job "demo" {
  provider "aws" {
    region = "us-east-1" # error: Unknown attribute "region"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

job "demo" {
  provider "aws" {
    usd_per_hour = "cheap" # error: Wrong type for "usd_per_hour"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

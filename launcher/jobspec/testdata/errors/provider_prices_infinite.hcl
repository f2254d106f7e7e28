job "demo" {
  provider "aws" {
    usd_per_hour = { a = 1e999 } # error: Wrong value for "usd_per_hour"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

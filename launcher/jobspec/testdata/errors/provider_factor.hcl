job "demo" {
  provider "aws" {
    price_factor = 0 # error: Wrong value for "price_factor"
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

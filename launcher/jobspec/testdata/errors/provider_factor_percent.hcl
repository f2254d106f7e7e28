job "demo" {
  provider "aws" {
    price_factor = 90 # warning: "price_factor" multiplies prices
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

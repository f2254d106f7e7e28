job "demo" {
  provider "aws" {
    workers = {} # error: "workers" is a block
  }
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
}

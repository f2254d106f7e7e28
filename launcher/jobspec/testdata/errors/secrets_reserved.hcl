job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  secrets = ["MASTER_ADDR"] # error: Reserved variable "MASTER_ADDR"
}

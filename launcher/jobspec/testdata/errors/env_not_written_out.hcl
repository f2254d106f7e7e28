variable "e" {
  default = { RANK = 1 }
}
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = var.e # error: Reserved variable "RANK"
}

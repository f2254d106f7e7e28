variable "epochs" {
  default = 1
}
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = { A = var.epoch } # error: Undeclared variable "epoch"
}

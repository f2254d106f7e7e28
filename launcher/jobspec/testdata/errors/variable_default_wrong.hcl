variable "n" {
  default = nope # error: Unknown name "nope"
}
job "demo" {
  provider "local" {}
  workers {
    count = 2
  }
  run "ranks" {
    command = "python train.py"
  }
  env = { A = var.n }
}
